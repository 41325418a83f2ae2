#include <algorithm>
#include <cstring>

#include "test/fake_cuda/work.h"

namespace fake_cuda {
namespace {

bool InHostMemory(const Range& range) { return range.memory == nullptr || range.memory->host_accessible(); }

bool Overlap(const Range& a, const Range& b) { return a.begin < b.begin + b.nbytes && b.begin < a.begin + a.nbytes; }

// Whether the fake owns the mapping, so that plain reads cannot fault (and sanitizers see them).
bool Owned(const Range& range) { return range.memory != nullptr && range.memory->kind != MemoryKind::kRegistered; }

bool ReadRange(const Range& range, std::vector<std::byte>* bytes) {
  bytes->resize(range.nbytes);
  if (Owned(range)) {
    ReadBytes(*range.memory, range.begin, bytes->data(), range.nbytes);
    return true;
  }
  return ReadHostSafely(range.begin, bytes->data(), range.nbytes);
}

// As one piece: byte by byte it is most of what a test takes under sanitizers.
bool Same(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

std::string Describe(const Range& range) {
  return Format("%zu bytes of host memory at 0x%zx", range.nbytes, static_cast<size_t>(range.begin));
}

}  // namespace

void SettleHostConflicts(Call& call, const Work& work) {
  std::vector<OpPtr> conflicting;
  for (const OpPtr& op : call.driver.unfinished) {
    bool conflict = false;
    for (const Range& range : work.ranges) {
      if (!InHostMemory(range)) continue;
      if (op->kind == WorkKind::kHostFunction && op->state != OpState::kExecuted) conflict = true;
      for (const Range& other : op->ranges) {
        if (InHostMemory(other) && (range.writes || other.writes) && Overlap(range, other)) conflict = true;
      }
    }
    if (conflict) conflicting.push_back(op);
  }
  for (const OpPtr& op : conflicting) {
    Demand(call.driver, call.lock, op);
    Settle(call.driver, op);
  }
}

void CoverHostRanges(Driver&, const OpPtr& op) {
  if (op->kind != WorkKind::kCopy) return;
  const Range& dest = op->ranges[0];
  const Range& src = op->ranges[1];
  if (InHostMemory(dest)) std::memset(reinterpret_cast<void*>(dest.begin), kDestinationByte, dest.nbytes);
  if (InHostMemory(src)) {
    const auto* bytes = reinterpret_cast<const std::byte*>(src.begin);
    op->watched.assign(bytes, bytes + src.nbytes);
    op->consumed = op->pageable_now && src.memory == nullptr;
  }
}

bool ReadSource(const Op& op, std::vector<std::byte>* bytes) {
  const Range& src = op.ranges[1];
  if (op.consumed) {
    *bytes = op.watched;
    return true;
  }
  return ReadRange(src, bytes);
}

void CheckSource(Driver& driver, Op* op, const std::vector<std::byte>& bytes, bool readable) {
  if (!InHostMemory(op->ranges[1])) return;
  if (op->consumed) {
    op->watched.clear();
  } else if (!readable || !Same(bytes, op->watched)) {
    driver.Violation(FAKE_CUDA_SOURCE_CHANGED,
                     Format("%s: its source, %s, was %s before the copy ran", op->call, Describe(op->ranges[1]).c_str(),
                            readable ? "changed" : "unmapped"));
    op->watched.clear();
  }
}

void Settle(Driver& driver, const OpPtr& op) {
  if (op->kind != WorkKind::kCopy) return;
  std::vector<std::byte> now;
  if (!op->watched.empty()) {
    bool readable = ReadRange(op->ranges[1], &now);
    if (!readable || !Same(now, op->watched)) {
      driver.Violation(FAKE_CUDA_SOURCE_CHANGED,
                       Format("%s: its source, %s, was %s before the copy was known to be done", op->call,
                              Describe(op->ranges[1]).c_str(), readable ? "changed" : "unmapped"));
    }
    op->watched.clear();
  }
  if (!op->held.empty()) {
    const Range& dest = op->ranges[0];
    bool readable = ReadRange(dest, &now);
    bool touched = !readable || std::any_of(now.begin(), now.end(),
                                            [](std::byte value) { return value != std::byte{kDestinationByte}; });
    if (touched) {
      driver.Violation(FAKE_CUDA_DESTINATION_TOUCHED,
                       Format("%s: its destination, %s, was %s before the copy was known to be done", op->call,
                              Describe(dest).c_str(), readable ? "written or freed" : "unmapped"));
    }
    // Not into memory that may be somebody else's by now.
    if (!touched || Owned(dest)) std::memcpy(reinterpret_cast<void*>(dest.begin), op->held.data(), dest.nbytes);
    op->held.clear();
    op->held.shrink_to_fit();
  }
}

}  // namespace fake_cuda
