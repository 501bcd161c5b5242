// Calls that several threads compute together. A call is cut into parts. The thread that made the call takes parts, and so
// do threads that have no work of their own and wait in `help`. Which thread takes a part changes nothing in its result.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

constexpr int kMostCalls = 64;                              // threads whose calls can be shared at the same time
constexpr std::chrono::microseconds kSpinTime(300);         // a helper looks for parts this long before it sleeps

thread_local bool in_part = false;  // of a shared call. A call made by a part is not shared again.

struct SharedCall {  // the call that one thread computes now; never freed
    std::atomic<uint64_t> state{0};  // number of the call << 32 | parts << 16 | the next part
    std::atomic<int> n_done{0};
    void (*run)(const void*, int) = nullptr;
    const void* work = nullptr;

    bool has_parts(uint64_t now) const { return (now & 0xffff) < (now >> 16 & 0xffff); }
    bool has_parts() const { return has_parts(state.load(std::memory_order_seq_cst)); }

    // Compute one part. False if none is left.
    bool take() {
        uint64_t now = state.load(std::memory_order_acquire);
        do {
            if (!has_parts(now)) return false;
        } while (!state.compare_exchange_weak(now, now + 1, std::memory_order_acquire));
        // The call cannot end before this part is done, so `run` and `work` belong to it.
        in_part = true;
        run(work, now & 0xffff);
        in_part = false;
        n_done.fetch_add(1, std::memory_order_release);
        return true;
    }
};

SharedCall shared_calls[kMostCalls];
std::atomic<uint64_t> taken{0};  // which of them belong to a thread
std::atomic<int> n_helping{0}, n_asleep{0};
std::atomic<unsigned> n_recalls{0};
// Never destroyed: a process may exit while threads sleep.
std::mutex& sleep_mutex = *new std::mutex;
std::condition_variable& awake = *new std::condition_variable;

inline void pause() {
#if defined(__x86_64__)
    _mm_pause();
#endif
}

struct OwnCall {  // the number of a thread's shared call; kMostCalls if all are taken
    int number = kMostCalls;

    OwnCall() {
        uint64_t now = taken.load();
        while (~now) {
            const int lowest = __builtin_ctzll(~now);
            if (taken.compare_exchange_weak(now, now | uint64_t{1} << lowest)) { number = lowest; return; }
        }
    }
    ~OwnCall() { if (number < kMostCalls) taken.fetch_and(~(uint64_t{1} << number)); }
};

inline int own_number() {
    static thread_local const OwnCall own;
    return own.number;
}

// Call part(0) ... part(n_parts - 1), together with the threads in `help`. Returns when all parts are done.
template <class F> void share(int n_parts, const F& part) {
    const int own = n_parts < 2 || in_part || !n_helping.load(std::memory_order_relaxed) ? kMostCalls : own_number();
    if (own >= kMostCalls) {
        for (int i = 0; i < n_parts; i++) part(i);
        return;
    }
    SharedCall& call = shared_calls[own];
    call.run = [](const void* work, int i) { (*(const F*)work)(i); };
    call.work = &part;
    call.n_done.store(0, std::memory_order_relaxed);
    const uint64_t number = (call.state.load(std::memory_order_relaxed) >> 32) + 1;
    call.state.store(number << 32 | (uint64_t)n_parts << 16, std::memory_order_seq_cst);
    if (n_asleep.load(std::memory_order_seq_cst)) {
        std::lock_guard<std::mutex> lock(sleep_mutex);
        awake.notify_all();
    }
    while (call.take()) {}
    for (int i = 0; call.n_done.load(std::memory_order_acquire) < n_parts; i++)
        if (i < 4000) pause(); else std::this_thread::yield();
}

// Whether a call of n parts, each of which takes long, keeps all threads busy that would compute it: those in `help` are
// fewer than the parts.
inline bool fills_helpers(int n_parts) {
    const int n = n_helping.load(std::memory_order_relaxed);
    return n_parts > 1 && !in_part && n > 0 && n < n_parts;
}

// Compute the parts that are left of other threads' calls. False if there was none.
bool take_all() {
    bool has_taken = false;
    for (uint64_t left = taken.load(); left; left &= left - 1)
        while (shared_calls[__builtin_ctzll(left)].take()) has_taken = true;
    return has_taken;
}

bool any_left() {
    for (uint64_t left = taken.load(); left; left &= left - 1)
        if (shared_calls[__builtin_ctzll(left)].has_parts()) return true;
    return false;
}

}  // namespace

extern "C" {

// How often `recall` was called.
unsigned recalls() { return n_recalls.load(); }

// Make all threads leave `help`.
void recall() {
    n_recalls++;
    if (n_asleep.load()) {
        std::lock_guard<std::mutex> lock(sleep_mutex);
        awake.notify_all();
    }
}

// Compute parts of other threads' calls until `recalls()` is no longer `seen`.
void help(unsigned seen) {
    n_helping++;
    auto last = std::chrono::steady_clock::now();
    while (n_recalls.load(std::memory_order_relaxed) == seen) {
        if (take_all()) last = std::chrono::steady_clock::now();
        for (int i = 0; i < 16; i++) pause();
        if (std::chrono::steady_clock::now() - last < kSpinTime) continue;
        std::unique_lock<std::mutex> lock(sleep_mutex);
        n_asleep++;
        // Looks once more: a call that came before it counted as asleep did not wake it.
        if (!any_left() && n_recalls.load() == seen) awake.wait(lock);
        n_asleep--;
        lock.unlock();
        last = std::chrono::steady_clock::now();
    }
    n_helping--;
}

}  // extern "C"
