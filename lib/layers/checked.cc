#include "packalloc/layers/checked.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/checked_math.h"
#include "lib/checks.h"
#include "lib/env.h"
#include "lib/layers/checker.h"
#include "lib/layers/stack_rules.h"

namespace packalloc {
namespace {

constexpr std::byte kFresh{0xCB};
constexpr std::byte kFreed{0xDD};
constexpr std::byte kGuard{0xFD};
constexpr std::size_t kMostGuardBytes = 4096;

absl::StatusCode CodeOf(CheckedFault fault) {
  switch (fault) {
    case CheckedFault::kDoubleFree:
    case CheckedFault::kUseAfterFree:
      return absl::StatusCode::kFailedPrecondition;
    case CheckedFault::kOutOfRange:
      return absl::StatusCode::kOutOfRange;
    case CheckedFault::kUnderrun:
    case CheckedFault::kOverrun:
      return absl::StatusCode::kDataLoss;
    default:
      return absl::StatusCode::kInvalidArgument;
  }
}

std::string Places(const std::vector<std::string>& names) { return absl::StrJoin(names, " < "); }

std::string SizeOf(std::size_t nbytes) { return absl::StrCat("a buffer of ", nbytes, " bytes"); }

}  // namespace

const char* ToString(CheckedFault fault) {
  constexpr std::array kNames = {"double free",   "use after free", "foreign buffer", "interior free", "size mismatch",
                                 "spec mismatch", "out of range",   "underrun",       "overrun",       "leak"};
  return kNames.at(static_cast<std::size_t>(fault));
}

// ---- history ----

void Checker::History::Add(const Pointer& entry) {
  const std::lock_guard lock(mutex_);
  if (most_ == 0) return;
  if (order_.size() == most_) {
    Unlist(order_.front());
    order_.pop_front();
  }
  by_serial_[entry->serial_number()] = entry;
  by_address_.insert({{entry->at.value, entry->at.byte_offset}, entry});
  order_.push_back(entry);
}

void Checker::History::Remove(const Pointer& entry) {
  const std::lock_guard lock(mutex_);
  const auto it = std::find(order_.rbegin(), order_.rend(), entry);
  if (it == order_.rend()) return;
  Unlist(*it);
  order_.erase(std::prev(it.base()));
}

void Checker::History::Unlist(const Pointer& freed) {
  by_serial_.erase(freed->serial_number());
  const DeviceAddress at = freed->at;
  const auto [first, last] = by_address_.equal_range({at.value, at.byte_offset});
  const auto it = std::find_if(first, last, [&](const auto& listed) { return listed.second == freed; });
  if (it != last) by_address_.erase(it);
}

Checker::Pointer Checker::History::Find(std::uint64_t serial, DeviceAddress at) const {
  const std::lock_guard lock(mutex_);
  if (serial != 0) {
    const auto it = by_serial_.find(serial);
    return it == by_serial_.end() ? nullptr : it->second;
  }
  // Freed buffers may overlap in any way, so all that start no later are looked at, the nearest first, some.
  int looked_at = 0;
  auto it = by_address_.upper_bound({at.value, at.byte_offset});
  while (it != by_address_.begin() && looked_at++ < 64) {
    --it;
    if (OffsetInside(it->second->at, it->second->nbytes, at) != kNotInside) return it->second;
  }
  return nullptr;
}

// ---- reports ----

CheckedReport Checker::ReportOf(CheckedFault fault, const std::string& what, const Entry* entry) const {
  CheckedReport report;
  report.fault = fault;
  report.message = absl::StrCat(inner_.traits.name, ": ", what);
  if (entry == nullptr) return report;
  report.allocated_at = NamesOf(entry->value.allocated_at);
  if (!report.allocated_at.empty()) {
    absl::StrAppend(&report.message, "; it was allocated by ", Places(report.allocated_at));
  }
  if (fault != CheckedFault::kDoubleFree && fault != CheckedFault::kUseAfterFree) return report;
  report.freed_at = NamesOf(entry->value.freed_at);
  if (!report.freed_at.empty()) absl::StrAppend(&report.message, ", and freed by ", Places(report.freed_at));
  return report;
}

absl::Status Checker::Fault(CheckedFault fault, const std::string& what, const Entry* entry) {
  faults_.fetch_add(1, std::memory_order_relaxed);
  const CheckedReport report = ReportOf(fault, what, entry);
  if (options_.on_fault) options_.on_fault(report);
  if (options_.abort_on_fault) {
    std::fprintf(stderr, "packalloc: %s\n", report.message.c_str());
    std::abort();
  }
  return absl::Status(CodeOf(fault), report.message);
}

absl::Status Checker::NotLive(const char* operation, const AnyBuf& buf, CheckedFault if_freed, bool others_too) {
  if (others_too && buf.serial() == 0) return absl::OkStatus();
  const DeviceAddress at = buf.serial() == 0 ? inner_.addr(buf) : DeviceAddress{};
  if (const Pointer freed = freed_.Find(buf.serial(), at)) {
    const std::string what = if_freed == CheckedFault::kDoubleFree
                                 ? absl::StrCat("double free of ", SizeOf(freed->nbytes))
                                 : absl::StrCat(operation, " after free, of ", SizeOf(freed->nbytes));
    return Fault(if_freed, what, freed.get());
  }
  if (others_too) return absl::OkStatus();
  return Fault(CheckedFault::kForeign,
               absl::StrCat(operation, ": the buffer is not in use: it was not allocated here, or freed more than ",
                            options_.history, " frees ago"),
               nullptr);
}

std::vector<CheckedReport> Checker::leaks() const {
  std::vector<CheckedReport> reports;
  for (const Pointer& entry : live_.All()) {
    reports.push_back(
        ReportOf(CheckedFault::kLeak, absl::StrCat(SizeOf(entry->nbytes), " was not freed"), entry.get()));
  }
  return reports;
}

CheckedStats Checker::stats() const {
  CheckedStats stats;
  for (const Pointer& entry : live_.All()) {
    ++stats.live_buffers;
    stats.live_bytes += entry->nbytes;
    stats.unguarded_buffers += entry->value.guarded || entry->value.poisoned ? 0 : 1;
  }
  stats.faults = faults_.load(std::memory_order_relaxed);
  return stats;
}

void Checker::ReportLeaks() const {
  const std::vector<CheckedReport> found = leaks();
  constexpr std::size_t kMostTold = 20;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (options_.on_fault) {
      options_.on_fault(found[i]);
    } else if (i < kMostTold) {
      WarnOnce(found[i].message);
    } else {
      WarnOnce(absl::StrCat(inner_.traits.name, ": and ", found.size() - i, " more buffers were not freed"));
      break;
    }
  }
}

Checker::~Checker() {
  try {
    ReportLeaks();
  } catch (...) {  // NOLINT(bugprone-empty-catch): leaks are told as far as that works
  }
}

// ---- guards ----

GuardLayout Checker::LayoutOf(std::size_t nbytes, const BufferSpec& spec) const {
  GuardLayout layout{.inner_bytes = nbytes};
  if (options_.guard_bytes == 0 || nbytes == 0 || spec.external_ptr.has_value() || !inner_.offset || !inner_.host_ptr) {
    return layout;
  }
  const std::size_t guard = std::min(options_.guard_bytes, kMostGuardBytes);
  std::size_t front = 0;
  if (const std::size_t alignment = std::max(spec.alignment, inner_.traits.min_alignment);
      alignment <= kMostGuardBytes && IsPowerOfTwo(alignment) && inner_.traits.address_is_pointer) {
    front = *RoundUp(guard, alignment);
  }
  const auto inner_bytes = CheckedAdd(nbytes, front + guard);
  // A size that only the guards make too large is granted without them.
  if (!inner_bytes || *inner_bytes > inner_.traits.max_alloc_bytes || !ValidateSpec(spec).ok()) return layout;
  return {front, guard, *inner_bytes};
}

bool Checker::Fill(const AnyBuf& base, std::size_t from, std::size_t nbytes, std::byte pattern) noexcept {
  std::array<std::byte, 16384> bytes;
  bytes.fill(pattern);
  try {
    while (nbytes > 0) {
      const std::size_t now = std::min(nbytes, bytes.size());
      const absl::StatusOr<AnyBuf> part = inner_.offset(base, now, from);
      if (!part.ok() || !inner_.copyin(*part, absl::MakeConstSpan(bytes.data(), now)).ok()) return false;
      from += now;
      nbytes -= now;
    }
    return true;
  } catch (...) {
    return false;
  }
}

std::optional<std::size_t> Checker::Damage(const AnyBuf& base, std::size_t from, std::size_t nbytes) noexcept {
  std::array<std::byte, 2 * kMostGuardBytes> bytes;
  try {
    const absl::StatusOr<AnyBuf> part = inner_.offset(base, nbytes, from);
    if (!part.ok() || !inner_.copyout(absl::MakeSpan(bytes.data(), nbytes), *part).ok()) return std::nullopt;
  } catch (...) {
    return std::nullopt;
  }
  const std::byte* const end = bytes.data() + nbytes;
  const std::byte* const found = std::find_if(bytes.cbegin(), end, [](std::byte b) { return b != kGuard; });
  if (found == end) return std::nullopt;
  return static_cast<std::size_t>(found - bytes.data());
}

// The handle that the caller gets: inside the guards where there are any. Where they cannot be made, the buffer goes
// without.
AnyBuf Checker::Guard(const AnyBuf& base, std::size_t nbytes, CheckedBuffer& buffer) {
  GuardLayout& layout = buffer.layout;
  absl::StatusOr<AnyBuf> handle = absl::UnknownError("not guarded");
  try {
    const bool reachable = inner_.offset && inner_.host_ptr && !buffer.spec.external_ptr && inner_.host_ptr(base).ok();
    buffer.poisoned = reachable && options_.poison;
    if (reachable && layout.back != 0) handle = inner_.offset(base, nbytes, layout.front);
  } catch (...) {  // NOLINT(bugprone-empty-catch): as where it answers an error
  }
  if (handle.ok()) {
    // Also where this fails half-way the buffer stays where it is: in front of it there may be guard bytes.
    buffer.guarded = Fill(base, 0, layout.front, kGuard) && Fill(base, layout.front + nbytes, layout.back, kGuard);
  } else {
    layout.front = layout.back = 0;
    handle = base;
  }
  if (buffer.poisoned && !buffer.spec.zero) buffer.poisoned = Fill(base, layout.front, nbytes, kFresh);
  return *std::move(handle);
}

std::optional<absl::Status> Checker::CheckGuards(const Entry& entry) {
  const CheckedBuffer& buffer = entry.value;
  if (!buffer.guarded) return std::nullopt;
  const GuardLayout& layout = buffer.layout;
  if (layout.front != 0) {
    if (const auto at = Damage(buffer.base, 0, layout.front)) {
      return Fault(CheckedFault::kUnderrun,
                   absl::StrCat("byte ", layout.front - *at, " before ", SizeOf(entry.nbytes), " was overwritten"),
                   &entry);
    }
  }
  if (const auto at = Damage(buffer.base, layout.front + entry.nbytes, layout.back)) {
    return Fault(CheckedFault::kOverrun,
                 absl::StrCat("byte ", *at + 1, " behind ", SizeOf(entry.nbytes), " was overwritten"), &entry);
  }
  return std::nullopt;
}

// ---- calls ----

Checker::Map::Found Checker::Live(const AnyBuf& buf) const {
  // A handle with a number that is not found is stale, though its memory may be in use again.
  if (const std::uint64_t serial = buf.serial(); serial != 0) {
    return live_.FindSerial(serial, [&] { return inner_.addr(buf); });
  }
  return live_.FindAddress(inner_.addr(buf));
}

Checker::Checker(AnyRecord inner, const CheckedOptions& options)
    : inner_(std::move(inner)), options_(options), freed_(options.history) {}

absl::StatusOr<AnyBuf> Checker::Alloc(std::size_t nbytes, const BufferSpec& spec) {
  CheckedBuffer buffer{.spec = spec, .base = {}, .layout = LayoutOf(nbytes, spec), .allocated_at = {}, .freed_at = {}};
  buffer.allocated_at = TakeStackTrace(options_.stack_depth);
  const std::size_t inner_bytes = buffer.layout.inner_bytes;
  absl::StatusOr<AnyBuf> base = inner_.alloc(inner_bytes, spec);
  if (!base.ok() || nbytes == 0) return base;
  try {
    return Track(*base, nbytes, std::move(buffer));
  } catch (...) {
    FreeQuietly(*base, inner_bytes, spec);
    throw;
  }
}

absl::StatusOr<AnyBuf> Checker::Track(AnyBuf base, std::size_t nbytes, CheckedBuffer buffer) {
  base.Identify();
  AnyBuf handle = Guard(base, nbytes, buffer);
  handle.IdentifyAs(base);
  buffer.base = std::move(base);
  const bool overlaps = buffer.spec.external_ptr.has_value();
  live_.Add(handle, inner_.addr(handle), nbytes, std::move(buffer), overlaps);
  return handle;
}

void Checker::FreeQuietly(const AnyBuf& base, std::size_t nbytes, const BufferSpec& spec) noexcept {
  try {
    inner_.free(base, nbytes, spec).IgnoreError();
  } catch (...) {  // NOLINT(bugprone-empty-catch): the exception under way is told
  }
}

absl::Status Checker::Free(const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec) {
  const auto [entry, offset] = Live(buf);
  if (!entry) {
    if (nbytes == 0 && buf.serial() == 0) return inner_.free(buf, nbytes, spec);  // of an empty buffer
    return NotLive("free", buf, CheckedFault::kDoubleFree, /*others_too=*/false);
  }
  if (offset != 0 || buf.is_view()) {
    return Fault(CheckedFault::kInterior,
                 absl::StrCat("free of a view, or of an address inside ", SizeOf(entry->nbytes),
                              "; free the buffer that it was made from"),
                 entry.get());
  }
  if (nbytes != entry->nbytes) {
    return Fault(CheckedFault::kSizeMismatch, absl::StrCat("free with ", nbytes, " bytes of ", SizeOf(entry->nbytes)),
                 entry.get());
  }
  if (!(spec == entry->value.spec)) {
    return Fault(CheckedFault::kSpecMismatch,
                 absl::StrCat("free with spec ", ToString(spec), " of ", SizeOf(nbytes), " with spec ",
                              ToString(entry->value.spec)),
                 entry.get());
  }
  StackTrace freed_at = TakeStackTrace(options_.stack_depth);
  if (!live_.Remove(entry)) return NotLive("free", buf, CheckedFault::kDoubleFree, /*others_too=*/false);
  CheckedBuffer& buffer = entry->value;
  absl::Status freed;
  std::optional<absl::Status> damage;
  try {
    buffer.freed_at = std::move(freed_at);
    // Known as freed before another thread can get the memory.
    freed_.Add(entry);
    damage = CheckGuards(*entry);
    if (buffer.poisoned) Fill(buffer.base, buffer.layout.front, nbytes, kFreed);
    freed = inner_.free(buffer.base, buffer.layout.inner_bytes, spec);
  } catch (...) {
    freed_.Remove(entry);
    live_.Restore(entry);
    throw;
  }
  if (!freed.ok()) {
    freed_.Remove(entry);
    live_.Restore(entry);
    return freed;
  }
  buffer.base = AnyBuf();  // it may own something (an open file)
  return damage.value_or(absl::OkStatus());
}

absl::Status Checker::CheckAccess(const char* operation, const AnyBuf& buf, std::size_t nbytes, bool others_too) {
  const auto [entry, offset] = Live(buf);
  if (!entry) {
    if (nbytes == 0) return absl::OkStatus();  // of an empty buffer
    return NotLive(operation, buf, CheckedFault::kUseAfterFree, others_too);
  }
  const std::size_t most = buf.nbytes() != AnyBuf::kUnknownSize ? buf.nbytes() : entry->nbytes - offset;
  if (absl::Status fits = CheckCopy(operation, nbytes, most); !fits.ok()) {
    return Fault(CheckedFault::kOutOfRange, std::string(fits.message()), entry.get());
  }
  return absl::OkStatus();
}

absl::Status Checker::Transfer(const AnyBuf& dest, const AnyBuf& src, std::size_t nbytes) {
  if (absl::Status ok = CheckAccess("transfer to", dest, nbytes, /*others_too=*/true); !ok.ok()) return ok;
  if (absl::Status ok = CheckAccess("transfer from", src, nbytes, /*others_too=*/true); !ok.ok()) return ok;
  return inner_.transfer(dest, src, nbytes);
}

absl::StatusOr<AnyBuf> Checker::Offset(const AnyBuf& buf, std::size_t nbytes, std::size_t byte_offset) {
  const auto [entry, offset] = Live(buf);
  if (!entry && (nbytes != 0 || byte_offset != 0)) {
    return NotLive("offset", buf, CheckedFault::kUseAfterFree, /*others_too=*/false);
  }
  if (entry) {
    const std::size_t most = buf.nbytes() != AnyBuf::kUnknownSize ? buf.nbytes() : entry->nbytes - offset;
    if (absl::Status fits = CheckView("offset", nbytes, byte_offset, most); !fits.ok()) {
      return Fault(CheckedFault::kOutOfRange, std::string(fits.message()), entry.get());
    }
  }
  return inner_.offset(buf, nbytes, byte_offset);
}

absl::StatusOr<std::byte*> Checker::HostPtr(const AnyBuf& buf) {
  if (absl::Status live = CheckAccess("host_ptr", buf, 0); !live.ok()) return live;
  const auto [entry, offset] = Live(buf);
  if (!entry && buf.serial() != 0) return NotLive("host_ptr", buf, CheckedFault::kUseAfterFree, false);
  // What was written here must not come after what the caller is about to write.
  if (entry && (entry->value.guarded || entry->value.poisoned) && inner_.synchronize) {
    if (absl::Status waited = inner_.synchronize(); !waited.ok()) return waited;
  }
  return inner_.host_ptr(buf);
}

DeviceAddress Checker::Addr(const AnyBuf& buf) {
  const auto [entry, offset] = Live(buf);
  if (entry || buf.serial() == 0) return inner_.addr(buf);
  NotLive("addr", buf, CheckedFault::kUseAfterFree, /*others_too=*/false).IgnoreError();
  return {};
}

AnyRecord Checker::Over(AnyRecord record, const CheckedOptions& options) {
  AnyRecord layered = record;
  std::shared_ptr<Checker> checker(new Checker(std::move(record), options));
  layered.alloc = [checker](std::size_t nbytes, const BufferSpec& spec) { return checker->Alloc(nbytes, spec); };
  layered.free = [checker](const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec) {
    return checker->Free(buf, nbytes, spec);
  };
  const auto checked = [checker](const char* operation, const AnyBuf& buf, std::size_t nbytes, const auto& call) {
    absl::Status allowed = checker->CheckAccess(operation, buf, nbytes);
    return allowed.ok() ? call(checker->inner_) : allowed;
  };
  layered.copyin = [checked](const AnyBuf& dest, absl::Span<const std::byte> src) {
    return checked("copyin", dest, src.size(), [&](const AnyRecord& inner) { return inner.copyin(dest, src); });
  };
  layered.copyout = [checked](absl::Span<std::byte> dest, const AnyBuf& src) {
    return checked("copyout", src, dest.size(), [&](const AnyRecord& inner) { return inner.copyout(dest, src); });
  };
  layered.addr = [checker](const AnyBuf& buf) { return checker->Addr(buf); };
  if (layered.offset) {
    layered.offset = [checker](const AnyBuf& buf, std::size_t nbytes, std::size_t byte_offset) {
      return checker->Offset(buf, nbytes, byte_offset);
    };
  }
  if (layered.transfer) {
    layered.transfer = [checker](const AnyBuf& dest, const AnyBuf& src, std::size_t nbytes) {
      return checker->Transfer(dest, src, nbytes);
    };
  }
  if (layered.copy_from_disk) {
    layered.copy_from_disk = [checked](const AnyBuf& dest, const DiskExtent& src, std::size_t nbytes) {
      return checked("copy_from_disk", dest, nbytes,
                     [&](const AnyRecord& inner) { return inner.copy_from_disk(dest, src, nbytes); });
    };
  }
  if (layered.host_ptr) {
    layered.host_ptr = [checker](const AnyBuf& buf) { return checker->HostPtr(buf); };
  }
  layered.controls.Add<CheckedControl>(checker);
  return layered;
}

absl::StatusOr<AnyRecord> CheckedLayer(AnyRecord inner, const CheckedOptions& options) {
  if (ContainsLayer(inner, "checked")) {
    return absl::InvalidArgumentError("Checked over Checked: the record is checked already");
  }
  AnyRecord layered = Checker::Over(std::move(inner), options);
  MarkLayer(layered, "checked");
  return layered;
}

absl::StatusOr<PackedAllocator> Checked(const PackedAllocator& packed, const CheckedOptions& options) {
  return ApplyLayer(packed, [&](AnyRecord inner) { return CheckedLayer(std::move(inner), options); });
}

}  // namespace packalloc
