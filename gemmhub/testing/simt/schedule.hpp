// Turns and barriers: which emulated thread runs next, and which wait for each other.
#pragma once
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "fiber.hpp"

namespace simt {

// A line of the kernel. Texts outlive the launch.
struct Where {
    const char* file = nullptr;
    unsigned line = 0;
};
// What a thread waits for, and where: `what` is null while it can run.
struct Place {
    const char* what = nullptr;
    Where where = {};
};

inline bool same_text(const char* a, const char* b) { return a == b || (a && b && std::strcmp(a, b) == 0); }
inline bool operator==(const Place& a, const Place& b) {
    return a.where.line == b.where.line && same_text(a.what, b.what) && same_text(a.where.file, b.where.file);
}

// "mma.cu:120"
inline std::string text(const Where& where) {
    const std::string path = where.file ? where.file : "?";
    return path.substr(path.rfind('/') + 1) + ":" + std::to_string(where.line);
}
// "block_sync at mma.cu:120"
inline std::string text(const Place& place) {
    return (place.what ? place.what : "nothing") + (place.where.file ? " at " + text(place.where) : "");
}

// What every emulated thread has; emulators derive theirs from it.
struct Thread {
    Fiber fiber;
    Place waits;
    bool ended = false;
};

// A barrier's threads that have arrived, in order, and where the first of them did.
template <class T>
struct Meeting {
    std::vector<T*> waiting;
    Place place;

    // Whether a thread that arrives at `at` is where the others are.
    bool agrees(const Place& at) const { return waiting.empty() || place == at; }
};

// The lanes of a warp, and what each of them brings to a collective.
template <class T>
struct Warp : Meeting<T> {
    void* brought[32];
};

// The threads of a launch in turns. A thread runs until it waits; then choose() names the next.
template <class T>
class Schedule {
  public:
    T* current = nullptr;   // null outside of run()
    std::vector<T*> ready;  // those that can run, without the current one

    virtual ~Schedule() = default;

    // Lets the thread begin in `entry`, which must end by leave(), on stack `index`.
    void start(T& thread, const Stacks& stacks, size_t index, void (*entry)()) {
        prepare(thread.fiber, stacks, index, entry);
        thread.ended = false;
        ready.push_back(&thread);
    }
    // Runs threads until choose() returns null, or one calls stop().
    void run() {
        turn(home_);
        current = nullptr;
    }

    // Gives up the turn until something has put the current thread on `ready`.
    void wait(const Place& place) {
        T* me = current;
        me->waits = place;
        turn(me->fiber);
        me->waits = {};
    }
    void yield() {
        ready.push_back(current);
        wait({"a turn"});
    }
    // Waits until `all` threads have arrived; the last one calls `act` before any of them goes on.
    template <class Act>
    void meet(Meeting<T>& meeting, size_t all, const Place& place, Act act) {
        if (meeting.waiting.empty()) meeting.place = place;
        meeting.waiting.push_back(current);
        if (meeting.waiting.size() == all) {
            act();
            release(meeting);
        }
        wait(place);
    }
    // The same for a collective of a warp: `act` gets what the lanes bring, and gives each what it takes away.
    template <class Act>
    void exchange(Warp<T>& warp, size_t lane, size_t lanes, const Place& place, void* brought, Act act) {
        warp.brought[lane] = brought;
        meet(warp, lanes, place, [&] { act(warp.brought); });
    }
    // The first to arrive is the last on `ready`.
    void release(Meeting<T>& meeting) {
        ready.insert(ready.end(), meeting.waiting.rbegin(), meeting.waiting.rend());
        meeting.waiting.clear();
    }
    // Takes one off `ready`, whose order changes.
    T* take(size_t index) {
        T* taken = ready[index];
        ready[index] = ready.back();
        ready.pop_back();
        return taken;
    }
    // Ends the current thread.
    [[noreturn]] void leave() {
        current->ended = true;
        wait({});
        __builtin_unreachable();
    }
    // Ends run() at once. The stacks are abandoned: what lies on them is not destroyed.
    [[noreturn]] void stop() {
        switch_to(current->fiber, home_);
        __builtin_unreachable();
    }

  protected:
    // The thread whose turn it is, off `ready`; null to end run(). Runs on the stack of the thread that waits.
    virtual T* choose() = 0;

  private:
    Fiber home_;

    void turn(Fiber& from) {
        T* next = choose();
        if (next) current = next;
        Fiber& to = next ? next->fiber : home_;
        if (&to != &from) switch_to(from, to);
    }
};

// "deadlock: 63 threads wait for block_sync at mma.cu:120; ...", of `threads` without those that have ended.
template <class T, class Describe>
std::string deadlock(const std::vector<T*>& threads, Describe describe) {
    std::map<std::string, size_t> places;
    for (const T* thread : threads)
        if (!thread->ended) ++places[describe(*thread)];
    std::string all;
    for (const auto& [place, count] : places)
        all += (all.empty() ? "deadlock: " : "; ") + std::to_string(count) +
               (count == 1 ? " thread waits for " : " threads wait for ") + place;
    return all;
}

}  // namespace simt
