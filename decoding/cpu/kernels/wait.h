// Waiting for a number that another thread changes, without being woken by it.

#pragma once

#include <chrono>
#include <cstdint>
#include <thread>

namespace {

// Sleeps, then looks again and again, and leaves the processor to any other thread that wants it meanwhile. Returns
// whether the number differs from `seen`.
inline bool wait_for_change(const int64_t* number, int64_t seen, int64_t sleep_ns, int64_t look_ns) {
  const auto has_changed = [&] { return __atomic_load_n(number, __ATOMIC_ACQUIRE) != seen; };
  if (sleep_ns > 0 && !has_changed()) std::this_thread::sleep_for(std::chrono::nanoseconds(sleep_ns));
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(look_ns);
  while (!has_changed()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace
