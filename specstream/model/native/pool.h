// The threads that run passes together with their caller, kept from one call to the next.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>
#if !defined(_WIN32)
#include <pthread.h>
#endif

// What a busy loop does between two looks.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // `yield` does nothing on most cores
#endif
}

// Waits for other threads that are at work: busily, then yielding the core, which one of them may need.
template <class Done> void until(Done done) {
  constexpr int SPINS = 4000;
  for (int spins = 0; !done(); spins++)
    if (spins > SPINS)
      std::this_thread::yield();
    else
      relax();
}

// Work for some threads: each calls part(of), once.
struct Task {
  void (*part)(void* of);
  void* of;
  std::atomic<int> left;  // threads that have not finished their part
};

// A thread that waits for tasks: awake for a moment, since the next pass of a reply follows soon, then asleep.
class Helper {
 public:
  Helper() { std::thread([this] { loop(); }).detach(); }

  void give(Task* task) {
    task_.store(task);
    if (!asleep_.load()) return;
    const std::lock_guard<std::mutex> held(lock_);
    awake_.notify_one();
  }

 private:
  static constexpr int LOOKS = 64;  // between two readings of the clock
  static constexpr std::chrono::milliseconds AWAKE{3};  // waking up takes up to .3 ms on a virtual machine

  [[noreturn]] void loop() {
    for (;;) {
      Task* task = next();
      task->part(task->of);
      task->left.fetch_sub(1, std::memory_order_release);
    }
  }

  Task* next() {
    const auto end = std::chrono::steady_clock::now() + AWAKE;
    do {
      for (int look = 0; look < LOOKS; look++, relax())
        if (task_.load(std::memory_order_relaxed)) return task_.exchange(nullptr);
    } while (std::chrono::steady_clock::now() < end);
    std::unique_lock<std::mutex> held(lock_);
    asleep_.store(true);  // before the look below, as `give` stores before it looks: one of them sees the other
    awake_.wait(held, [this] { return task_.load() != nullptr; });
    asleep_.store(false);
    return task_.exchange(nullptr);
  }

  std::atomic<Task*> task_{nullptr};
  std::atomic<bool> asleep_{false};
  std::mutex lock_;
  std::condition_variable awake_;
};

// All helpers of a process. Calls at the same time get helpers of their own. Nothing here is ever destroyed: a
// process may end while helpers sleep, or in the middle of a pass.
class Pool {
 public:
  static Pool& here() {
    Pool* pool = current().load(std::memory_order_acquire);
    if (pool) return *pool;
    Pool* fresh = new Pool;
    if (current().compare_exchange_strong(pool, fresh)) return *fresh;
    delete fresh;
    return *pool;
  }

  // At most `count` helpers: fewer if the system gives no more threads.
  std::vector<Helper*> take(int count) {
    const std::lock_guard<std::mutex> held(lock_);
    std::vector<Helper*> taken;
    while ((int)taken.size() < count) {
      if (!idle_.empty()) {
        taken.push_back(idle_.back());
        idle_.pop_back();
        continue;
      }
      if (made_ == MOST) break;
      try {
        taken.push_back(new Helper);
      } catch (const std::system_error&) {
        break;
      }
      made_++;
    }
    return taken;
  }

  void give_back(const std::vector<Helper*>& taken) {
    const std::lock_guard<std::mutex> held(lock_);
    idle_.insert(idle_.end(), taken.rbegin(), taken.rend());
  }

 private:
  static constexpr int MOST = 256;

  static std::atomic<Pool*>& current() {
    static std::atomic<Pool*> pool{nullptr};
#if !defined(_WIN32)
    // A forked process has none of these threads, and a lock of the pool may be held for ever.
    static const int forgets = pthread_atfork(nullptr, nullptr, [] { current().store(nullptr); });
    (void)forgets;
#endif
    return pool;
  }

  std::mutex lock_;
  std::vector<Helper*> idle_;
  int made_ = 0;
};
