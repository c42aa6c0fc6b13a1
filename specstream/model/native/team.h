// The threads of one call, among which the work of its phases is divided.
#pragma once

#include <cstdint>

#include "pool.h"

// Every thread of the team calls `each` with the same work, which is one phase; `each` returns when all of it
// is done. Threads take the work in small pieces, so that one whose core is also used by others takes fewer.
class Team {
 public:
  explicit Team(int size) : size_(size) {}

  // To be called once by every thread, before the first phase.
  void begin() { phase() = 0; }

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
    until([&] { return done_.load(std::memory_order_acquire) == done; });
  }

  const int size_;
  alignas(64) std::atomic<int64_t> next_[2] = {};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> done_{0};
};

// Runs body(team) on this thread and on helpers, `threads` together, or fewer if there are no more.
template <class Body> void together(int threads, const Body& body) {
  if (threads < 2) {
    Team team(1);
    team.begin();
    return body(team);
  }
  const std::vector<Helper*> helpers = Pool::here().take(threads - 1);
  struct Call {
    const Body& body;
    Team team;
  } call{body, Team((int)helpers.size() + 1)};
  Task task{[](void* of) {
              Call& call = *(Call*)of;
              call.team.begin();
              call.body(call.team);
            },
            &call, {(int)helpers.size()}};
  for (Helper* helper : helpers) helper->give(&task);
  task.part(task.of);
  until([&] { return task.left.load(std::memory_order_acquire) == 0; });
  Pool::here().give_back(helpers);
}
