#include "test/random/model.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "packalloc/layers/checked.h"
#include "packalloc/layers/failing.h"
#include "packalloc/layers/lru.h"

namespace packalloc::testing {
namespace {

struct Wrong : std::runtime_error {
  using std::runtime_error::runtime_error;
};
void Expect(bool holds, const std::string& what) {
  if (!holds) throw Wrong(what);
}

class Episode {
 public:
  Episode(World world, std::string* story) : world_(std::move(world)), story_(story) {
    faults_ = Find<FailingControl>(world_.device);
    lru_ = Find<LruControl>(world_.device);
  }
  // What a run that found something wrong has left.
  ~Episode() {
    Disarm();
    for (const Live& live : live_) {
      try {
        (void)world_.device.free(live.buf, live.buf.nbytes(), live.spec);
      } catch (...) {  // NOLINT(bugprone-empty-catch)
      }
    }
  }
  Episode(const Episode&) = delete;
  Episode& operator=(const Episode&) = delete;

  void Do(const Step& step) {
    armed_ = false;
    switch (step.operation % 20) {
      case 0:
      case 1:
      case 2:
      case 3:
        return Alloc(step);
      case 4:
      case 5:
      case 6:
        return Free(step);
      case 7:
      case 8:
      case 9:
        return Copyin(step);
      case 10:
      case 11:
        return Copyout(step);
      case 12:
      case 13:
        return Transfer(step);
      case 14:
        return HostPtr(step);
      case 15:
        return Mistake(step);
      case 16:
        return Maintain(step);
      default:
        Arm(step);
        Alloc(step);
        Copyin(step);
        Free(step);
        Disarm();
    }
  }

  void End() {
    Disarm();
    while (!live_.empty()) Free(Step{0, 0, 0, 0, 0});
    if (const auto checked = Find<CheckedControl>(world_.device)) {
      Expect(checked->leaks().empty(), "the checker sees a leak");
      Expect(checked->stats().faults == mistakes_, "the checker has seen other mistakes than those made");
    }
    if (lru_) {
      Expect(lru_->stats().in_use_bytes == 0, "the cache has bytes in use at the end");
      if (!lru_->Clear().ok()) Expect(false, "Clear failed");
      Expect(lru_->stats().cached_bytes == 0, "the cache has bytes after Clear");
    }
    const std::shared_ptr<MockControl> mock = world_.mock;
    faults_ = nullptr;
    lru_ = nullptr;
    world_ = World();
    if (!mock) return;
    Expect(mock->live_blocks() == 0, absl::StrCat(mock->live_blocks(), " blocks are live at the end"));
    Expect(mock->misuses().empty(), mock->misuses().empty() ? "" : mock->misuses().front());
  }

 private:
  struct Live {
    AnyBuf buf;
    BufferSpec spec;
    std::vector<std::byte> bytes;
    std::unique_ptr<std::vector<std::byte>> external;
  };
  struct Range {
    std::size_t offset, nbytes;
  };

  void Tell(const std::string& what) {
    if (story_ != nullptr) absl::StrAppend(story_, "  ", what, "\n");
  }

  // Calls, and tells whether it succeeded. It must, unless a fault is armed or the code is one of `allowed`.
  template <typename Call>
  bool Try(const std::string& what, const Call& call, std::initializer_list<absl::StatusCode> allowed = {}) {
    absl::Status status;
    try {
      status = call();
    } catch (const Wrong&) {
      throw;
    } catch (const std::exception& e) {
      status = absl::UnknownError(absl::StrCat("thrown: ", e.what()));
    }
    Tell(absl::StrCat(what, ": ", status.ok() ? "ok" : status.ToString()));
    Expect(status.ok() || armed_ || std::find(allowed.begin(), allowed.end(), status.code()) != allowed.end(),
           absl::StrCat(what, ": ", status.ToString()));
    return status.ok();
  }

  void Arm(const Step& step) {
    armed_ = true;
    const auto member = static_cast<std::size_t>(step.d % kMembers);
    if (static_cast<Member>(member) == Member::kFree && !world_.frees_may_fail) return;
    const std::uint64_t nth = step.d / 16 % 6 + 1;
    const bool throws = step.d / 256 % 2 == 0;
    constexpr std::array kCodes = {absl::StatusCode::kResourceExhausted, absl::StatusCode::kUnavailable,
                                   absl::StatusCode::kInternal};
    const absl::Status status(kCodes.at(step.d / 512 % kCodes.size()), "injected");
    const auto thrown = std::make_exception_ptr(std::runtime_error("injected"));
    Tell(absl::StrCat("fault: call ", nth, " of ", std::string(ToString(static_cast<Member>(member))),
                      throws ? " throws" : ""));
    if (faults_) {
      faults_->Add({.member = static_cast<Member>(member),
                    .nth = nth,
                    .status = status,
                    .exception = throws ? thrown : nullptr});
    } else if (world_.mock) {
      // The members of both enumerations stand in one order.
      const auto call = static_cast<Member>(member);
      throws ? world_.mock->ThrowNth(call, nth, thrown) : world_.mock->FailNth(call, nth, status);
    }
  }

  void Disarm() {
    armed_ = false;
    if (faults_) faults_->ClearRules();
    if (world_.mock) world_.mock->ClearFailures();
  }

  void Alloc(const Step& step) {
    constexpr std::array<std::size_t, 8> kSizes = {1, 8, 64, 100, 512, 4096, 4097, 70000};
    const std::size_t nbytes = step.a % 3 == 0 ? step.b % 3000 : kSizes.at(step.b % kSizes.size());
    Live live;
    switch (step.c % 12) {
      case 0:
        live.spec.zero = true;
        break;
      case 1:
        live.spec.nolru = true;
        break;
      case 2:
        live.spec.alignment = 256;
        break;
      case 3:
        live.spec.host = true;
        break;
      case 4:
        live.external = std::make_unique<std::vector<std::byte>>(std::max<std::size_t>(nbytes, 1), std::byte{3});
        live.spec.external_ptr = reinterpret_cast<std::uintptr_t>(live.external->data());
        break;
      default:
        break;
    }
    if (live_.size() >= 24) return;
    const bool made =
        Try(absl::StrCat("alloc ", nbytes, " ", live.external ? "external" : ToString(live.spec)),
            [&] {
              absl::StatusOr<AnyBuf> buf = world_.device.alloc(nbytes, live.spec);
              if (buf.ok()) live.buf = *std::move(buf);
              return buf.status();
            },
            // A small device runs out of memory, and not every device has every kind of it.
            {absl::StatusCode::kResourceExhausted,
             live.spec == BufferSpec{} ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInvalidArgument});
    if (!made) return;
    Expect(live.buf.nbytes() == nbytes, "a buffer of another size than asked for");
    live.bytes.resize(nbytes);
    live_.push_back(std::move(live));
    const bool was_armed = std::exchange(armed_, false);
    if (was_armed) Disarm();  // what follows is to succeed
    Live& added = live_.back();
    if (added.spec.alignment != 0 && nbytes != 0) {
      const absl::StatusOr<DeviceAddress> at = world_.device.addr(added.buf);
      Expect(at.ok() && (!world_.device.traits().address_is_pointer || at->value % added.spec.alignment == 0),
             "a buffer that is not aligned as asked for");
    }
    if (added.spec.zero) {
      Compare(added, added.buf, {0, nbytes});
    } else {
      Refill(added, step.d);
    }
  }

  void Refill(Live& live, std::uint64_t seed) {
    for (std::size_t i = 0; i < live.bytes.size(); ++i) live.bytes[i] = static_cast<std::byte>(i * 7 + seed);
    Try("fill", [&] { return world_.device.copyin(live.buf, live.bytes); });
  }

  void Free(const Step& step) {
    if (live_.empty()) return;
    const auto it = live_.begin() + static_cast<std::ptrdiff_t>(step.a % live_.size());
    // Every buffer's bytes are whole at its end.
    if (!armed_) Compare(*it, it->buf, {0, it->bytes.size()});
    const bool freed = Try(absl::StrCat("free ", it->bytes.size()),
                           [&] { return world_.device.free(it->buf, it->bytes.size(), it->spec); });
    if (freed) {
      if (it->external && world_.keeps_bytes && it->bytes.size() == it->external->size()) {
        Expect(*it->external == it->bytes, "external memory has other bytes than were written to it");
      }
      live_.erase(it);
    } else if (world_.checked) {
      Disarm();
      Refill(*it, step.b);
    }
  }

  // A part of the buffer, itself or as a view (of a view).
  AnyBuf Part(const Live& live, const Step& step, Range& range) {
    const std::size_t size = live.bytes.size();
    range.offset = size == 0 ? 0 : step.b % (size + 1);
    range.nbytes = step.c % (size - range.offset + 1);
    if (range.offset == 0 && step.d % 2 == 0) return live.buf;
    if (!world_.device.supports_offset()) {
      range.offset = 0;
      return live.buf;
    }
    AnyBuf view;
    const std::size_t half = range.offset / 2;
    Try("offset", [&]() -> absl::Status {
      absl::StatusOr<AnyBuf> outer = world_.device.offset(live.buf, size - half, half);
      if (!outer.ok()) return outer.status();
      absl::StatusOr<AnyBuf> inner = world_.device.offset(*outer, range.nbytes, range.offset - half);
      if (inner.ok()) view = *std::move(inner);
      return inner.status();
    });
    return view;
  }

  void Compare(const Live& live, const AnyBuf& part, Range range) {
    if (!world_.keeps_bytes) return;
    std::vector<std::byte> host(range.nbytes, std::byte{0x5A});
    Try("copyout", [&] { return world_.device.copyout(absl::MakeSpan(host), part); });
    for (std::size_t i = 0; i < host.size(); ++i) {
      Expect(host[i] == live.bytes[range.offset + i],
             absl::StrCat("byte ", range.offset + i, " of ", live.bytes.size(), " is ", static_cast<int>(host[i]),
                          ", it was written as ", static_cast<int>(live.bytes[range.offset + i])));
    }
  }

  Live* Pick(std::uint64_t number) { return live_.empty() ? nullptr : &live_[number % live_.size()]; }

  void Copyin(const Step& step) {
    Live* live = Pick(step.a);
    if (live == nullptr) return;
    Range range{};
    const AnyBuf part = Part(*live, step, range);
    if (part.empty()) return;
    std::vector<std::byte> source(range.nbytes);
    for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i + step.d);
    const bool written = Try(absl::StrCat("copyin ", range.nbytes, " at ", range.offset, " of ", live->bytes.size()),
                             [&] { return world_.device.copyin(part, source); });
    if (!written) return;
    std::copy(source.begin(), source.end(), live->bytes.begin() + static_cast<std::ptrdiff_t>(range.offset));
  }

  void Copyout(const Step& step) {
    Live* live = Pick(step.a);
    if (live == nullptr) return;
    Range range{};
    const AnyBuf part = Part(*live, step, range);
    Compare(*live, part, range);
  }

  void Transfer(const Step& step) {
    Live* from = Pick(step.a);
    Live* to = Pick(step.d);
    if (from == nullptr || !world_.device.supports_transfer()) return;
    Range source{};
    Range dest{};
    const AnyBuf source_part = Part(*from, step, source);
    const AnyBuf dest_part = Part(*to, Step{0, 0, step.c, step.b, step.a}, dest);
    const std::size_t nbytes = std::min(source.nbytes, dest.nbytes);
    Try(absl::StrCat("transfer ", nbytes), [&] { return world_.device.transfer(dest_part, source_part, nbytes); });
    if (nbytes != 0) std::memmove(to->bytes.data() + dest.offset, from->bytes.data() + source.offset, nbytes);
  }

  void HostPtr(const Step& step) {
    Live* live = Pick(step.a);
    if (live == nullptr || !world_.device.supports_host_ptr() || live->bytes.empty()) return;
    const absl::StatusOr<std::byte*> at = world_.device.host_ptr(live->buf);
    if (at.status().code() == absl::StatusCode::kFailedPrecondition) return;  // no host memory
    Expect(at.ok(), at.status().ToString());
    Try("synchronize", [&] { return world_.device.synchronize(); });
    Tell("host_ptr");
    Expect(std::equal(live->bytes.begin(), live->bytes.end(), *at), "other bytes at host_ptr");
    (*at)[step.b % live->bytes.size()] = live->bytes[step.b % live->bytes.size()] = static_cast<std::byte>(step.c);
  }

  void Mistake(const Step& step) {
    Live* live = Pick(step.a);
    if (live == nullptr) return;
    Tell("mistakes");
    const std::size_t size = live->bytes.size();
    std::vector<std::byte> more(size + 1 + step.b % 100, std::byte{0xEE});
    Expect(world_.device.copyin(live->buf, more).code() == absl::StatusCode::kOutOfRange, "copyin out of range");
    Expect(world_.device.copyout(absl::MakeSpan(more), live->buf).code() == absl::StatusCode::kOutOfRange,
           "copyout out of range");
    Expect(world_.device.free(live->buf, size + 1, live->spec).code() == absl::StatusCode::kInvalidArgument,
           "free with another size");
    if (!world_.checked || size == 0 || live->spec.external_ptr) return;
    BufferSpec other = live->spec;
    other.uncached = !other.uncached;
    Expect(world_.device.free(live->buf, size, other).code() == absl::StatusCode::kInvalidArgument,
           "free with another spec");
    ++mistakes_;
  }

  void Maintain(const Step& step) {
    Tell("clear, trim, statistics");
    if (world_.device.record().synchronize && step.a % 2 == 0)
      Try("synchronize", [&] { return world_.device.synchronize(); });
    if (!lru_) return;
    const LruStats stats = lru_->stats();
    Expect(stats.peak_held_bytes >= stats.cached_bytes, "the cache has more than it ever had");
    Try("Trim", [&] { return step.b % 3 == 0 ? lru_->Clear() : lru_->Trim(step.c % 10000); });
    const std::size_t most = step.b % 3 == 0 ? 0 : step.c % 10000;
    Expect(lru_->stats().cached_bytes <= most, "the cache keeps more than Trim was told");
  }

  World world_;
  std::string* const story_;
  std::shared_ptr<FailingControl> faults_;
  std::shared_ptr<LruControl> lru_;
  std::vector<Live> live_;
  bool armed_ = false;
  std::uint64_t mistakes_ = 0;
};

std::optional<std::string> RunAndTell(const WorldFactory& make, const std::vector<Step>& steps, std::string* story) {
  Episode episode(make(), story);
  std::size_t at = 0;
  try {
    for (; at < steps.size(); ++at) episode.Do(steps[at]);
    episode.End();
  } catch (const Wrong& wrong) {
    return absl::StrCat("step ", at, ": ", wrong.what());
  }
  return std::nullopt;
}

}  // namespace

std::vector<Step> RandomSteps(std::mt19937_64& random, std::size_t count) {
  std::vector<Step> steps(count);
  for (Step& step : steps) step = {random(), random(), random(), random(), random()};
  return steps;
}

std::optional<std::string> Run(const WorldFactory& make, const std::vector<Step>& steps) {
  return RunAndTell(make, steps, nullptr);
}

std::vector<Step> Shrink(const WorldFactory& make, std::vector<Step> steps) {
  for (std::size_t part = std::max<std::size_t>(steps.size() / 2, 1);;) {
    bool smaller = false;
    for (std::size_t from = 0; from < steps.size();) {
      std::vector<Step> fewer = steps;
      const auto first = fewer.begin() + static_cast<std::ptrdiff_t>(from);
      fewer.erase(first, first + static_cast<std::ptrdiff_t>(std::min(part, steps.size() - from)));
      if (Run(make, fewer).has_value()) {
        steps = std::move(fewer);
        smaller = true;
      } else {
        from += part;
      }
    }
    if (part == 1 && !smaller) return steps;
    part = std::max<std::size_t>(part / 2, 1);
  }
}

std::string Story(const WorldFactory& make, const std::vector<Step>& steps) {
  std::string story;
  RunAndTell(make, steps, &story);
  return story;
}

}  // namespace packalloc::testing
