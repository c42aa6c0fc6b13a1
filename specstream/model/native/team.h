// The threads of one parallel region, among which the work of its phases is divided.
#pragma once

#include <atomic>
#include <cstdint>
#include <sched.h>
#if defined(_OPENMP)
#include <omp.h>
#endif

// Every thread of the region calls `each` with the same work, which is one phase; `each` returns when all of it
// is done. Threads take the work in small pieces, so that one whose core is also used by others takes fewer.
class Team {
 public:
  // To be called once by every thread, before the first phase.
  void begin() {
    phase() = 0;
#if defined(_OPENMP)
#pragma omp single
    size_ = omp_get_num_threads();
#endif
  }

  // Calls body(start, end) for parts of [0, items), which are multiples of `step` items except for the last.
  template <class Body> void each(int64_t items, int64_t step, Body body) {
    std::atomic<int64_t>& next = next_[phase() & 1];
    const int64_t pieces = size_ == 1 ? 1 : PIECES * size_;
    const int64_t least = items / pieces / step * step, piece = least > 0 ? least : step;
    for (;;) {
      const int64_t start = next.fetch_add(piece, std::memory_order_relaxed);
      if (start >= items) break;
      body(start, start + piece < items ? start + piece : items);
    }
    wait();
  }

 private:
  static constexpr int PIECES = 8;  // pieces of a phase's work per thread
  static constexpr int SPINS = 4000;  // loops of busy waiting before a thread yields its core

  static int& phase() {
    static thread_local int number;
    return number;
  }

  void wait() {
    const int done = ++phase();
    next_[done & 1].store(0, std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      done_.store(done, std::memory_order_release);
      return;
    }
    for (int spins = 0; done_.load(std::memory_order_acquire) != done; spins++) {
      if (spins > SPINS) sched_yield();
#if defined(__x86_64__)
      else __builtin_ia32_pause();
#endif
    }
  }

  int size_ = 1;
  alignas(64) std::atomic<int64_t> next_[2] = {};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> done_{0};
};

// Runs body(team) on `threads` threads; without OpenMP on one.
template <class Body> void together(int threads, Body body) {
  Team team;
#if defined(_OPENMP)
#pragma omp parallel num_threads(threads)
#endif
  {
    team.begin();
    body(team);
  }
}
