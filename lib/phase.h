// Phase: whether something is there, and which thread is bringing it about, without a lock held meanwhile.
//
//   Phase::Change change(phase, Phase::kEmpty);                  // waits out another thread's change
//   if (change.claimed()) { allocate(); change.Finish(Phase::kReady); }    // not finished (error, exception): undone
#ifndef PACKALLOC_LIB_PHASE_H_
#define PACKALLOC_LIB_PHASE_H_

#include <atomic>
#include <cstdint>
#include <thread>

namespace packalloc {

class Phase {
 public:
  enum Value : std::uint32_t { kEmpty, kChanging, kReady };

  bool ready() const { return value_.load() == kReady; }

  // One change from `from` to another phase. Every other thread that wants one waits for its end. Claims nothing where
  // the phase is another than `from`, or where this very thread is in the middle of a change (waiting would not end).
  class Change {
   public:
    Change(Phase& phase, Value from) : phase_(phase), from_(from) {
      for (;;) {
        std::uint32_t value = from;
        if (phase.value_.compare_exchange_strong(value, kChanging)) {
          phase.changing_thread_.store(std::this_thread::get_id());
          claimed_ = true;
          return;
        }
        if (value != kChanging) return;
        if (phase.changing_thread_.load() == std::this_thread::get_id()) {
          nested_ = true;
          return;
        }
        phase.value_.wait(kChanging);
      }
    }
    ~Change() {
      if (claimed_) End(from_);
    }
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;

    bool claimed() const { return claimed_; }
    bool nested() const { return nested_; }
    void Finish(Value to) {
      claimed_ = false;
      End(to);
    }

   private:
    void End(Value to) {
      phase_.changing_thread_.store(std::thread::id());  // before others can claim: it must never name a thread wrongly
      phase_.value_.store(to);
      phase_.value_.notify_all();
    }

    Phase& phase_;
    const Value from_;
    bool claimed_ = false;
    bool nested_ = false;
  };

 private:
  std::atomic<std::uint32_t> value_{kEmpty};
  std::atomic<std::thread::id> changing_thread_{};
};

}  // namespace packalloc

#endif  // PACKALLOC_LIB_PHASE_H_
