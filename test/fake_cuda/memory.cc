#include "test/fake_cuda/memory.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace fake_cuda {
namespace {

constexpr size_t kReservation = size_t{64} << 30;
constexpr size_t kAlignment = 256;  // what CUDA promises, and not more: addresses are odd multiples of it
constexpr size_t kQuarantineBytes = size_t{64} << 20;

size_t PageSize() {
  static const size_t size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

bool RoundUp(size_t nbytes, size_t to, size_t* out) {
  if (nbytes > SIZE_MAX - (to - 1)) return false;
  *out = (nbytes + to - 1) / to * to;
  return true;
}

}  // namespace

uintptr_t Memories::TakeAddresses(size_t nbytes) {
  size_t span = 0;
  // A gap behind each allocation, so that what runs over the end hits nobody else.
  if (nbytes > SIZE_MAX - 4 * kAlignment || !RoundUp(nbytes + kAlignment, 2 * kAlignment, &span)) return 0;
  if (span > last_address_ - next_address_) {
    size_t wanted = 0;
    if (!RoundUp(span, kReservation, &wanted)) return 0;
    // The system call itself: a sanitizer that sees the mapping would set up shadow memory for all of it.
    long mapped = syscall(SYS_mmap, nullptr, wanted, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == -1) return 0;
    next_address_ = static_cast<uintptr_t>(mapped) + kAlignment;
    last_address_ = static_cast<uintptr_t>(mapped) + wanted;
    reservations_[static_cast<uintptr_t>(mapped)] = last_address_;
    if (span > last_address_ - next_address_) return 0;
  }
  uintptr_t address = next_address_;
  next_address_ += span;
  return address;
}

MemoryPtr Memories::NewDevice(size_t nbytes) {
  auto memory = std::make_shared<Memory>();
  // Zero bytes stand for fresh ones (see ReadBytes), so that untouched pages of a large allocation cost nothing.
  memory->bytes = static_cast<std::byte*>(std::calloc(nbytes, 1));
  if (memory->bytes == nullptr) return nullptr;
  memory->begin = TakeAddresses(nbytes);
  if (memory->begin == 0) {
    std::free(memory->bytes);
    return nullptr;
  }
  memory->nbytes = nbytes;
  memory->id = ++next_id_;
  memories_[memory->begin] = memory;
  return memory;
}

MemoryPtr Memories::NewHost(MemoryKind kind, size_t nbytes) {
  auto memory = std::make_shared<Memory>();
  // Not aligned to a page: nobody promises that.
  if (nbytes > SIZE_MAX / 2 || !RoundUp(nbytes + kAlignment, PageSize(), &memory->mapped)) return nullptr;
  void* mapping =
      mmap(nullptr, memory->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  memory->kind = kind;
  memory->mapping = mapping;
  memory->bytes = static_cast<std::byte*>(mapping) + kAlignment;
  memory->begin = reinterpret_cast<uintptr_t>(memory->bytes);
  memory->nbytes = nbytes;
  memory->id = ++next_id_;
  std::memset(memory->bytes, kFreshByte, nbytes);
  memories_[memory->begin] = memory;
  return memory;
}

MemoryPtr Memories::Register(uintptr_t begin, size_t nbytes) {
  auto memory = std::make_shared<Memory>();
  memory->kind = MemoryKind::kRegistered;
  memory->begin = begin;
  memory->nbytes = nbytes;
  memory->bytes = reinterpret_cast<std::byte*>(begin);
  memory->id = ++next_id_;
  memories_[begin] = memory;
  return memory;
}

void Memories::End(const MemoryPtr& memory, const char* freed_by) {
  memory->live = false;
  memory->freed_by = freed_by;
  switch (memory->kind) {
    case MemoryKind::kDevice:
      std::free(memory->bytes);
      memory->bytes = nullptr;
      break;
    case MemoryKind::kPinned:
    case MemoryKind::kManaged:
      Quarantine(memory);
      break;
    case MemoryKind::kRegistered:
      memories_.erase(memory->begin);  // the addresses are the user's
      break;
  }
}

void Memories::Quarantine(const MemoryPtr& memory) {
  std::memset(memory->bytes, kFreedByte, memory->nbytes);
  quarantine_.push_back(memory);
  quarantined_ += memory->mapped;
  while (quarantined_ > kQuarantineBytes) {
    MemoryPtr oldest = quarantine_.front();
    quarantine_.pop_front();
    quarantined_ -= oldest->mapped;
    // Stays reserved, so that the addresses are not used again.
    mprotect(oldest->mapping, oldest->mapped, PROT_NONE);
    madvise(oldest->mapping, oldest->mapped, MADV_DONTNEED);
  }
}

MemoryPtr Memories::At(uintptr_t address) const {
  MemoryPtr before = Before(address);
  return before != nullptr && address < before->end() ? before : nullptr;
}

MemoryPtr Memories::Before(uintptr_t address) const {
  auto after = memories_.upper_bound(address);
  return after == memories_.begin() ? nullptr : std::prev(after)->second;
}

MemoryPtr Memories::Overlapping(uintptr_t begin, size_t nbytes) const {
  if (MemoryPtr first = At(begin); first != nullptr && first->live) return first;
  for (auto at = memories_.upper_bound(begin); at != memories_.end() && at->first - begin < nbytes; ++at) {
    if (at->second->live) return at->second;
  }
  return nullptr;
}

bool Memories::IsDeviceAddress(uintptr_t address) const {
  auto after = reservations_.upper_bound(address);
  return after != reservations_.begin() && address < std::prev(after)->second;
}

void Memories::EndAll() {
  std::vector<MemoryPtr> live;
  for (const auto& [begin, memory] : memories_) {
    if (memory->live) live.push_back(memory);
  }
  for (const MemoryPtr& memory : live) End(memory, "fake_cuda_reset");
}

namespace {

// By words where it can be: a sanitizer looks at each access.
void CopyFlipped(const std::byte* from, std::byte* to, size_t nbytes) {
  uint64_t flip;
  std::memset(&flip, kFreshByte, sizeof flip);
  size_t i = 0;
  for (uint64_t word; nbytes - i >= sizeof word; i += sizeof word) {
    std::memcpy(&word, from + i, sizeof word);
    word ^= flip;
    std::memcpy(to + i, &word, sizeof word);
  }
  for (; i < nbytes; ++i) to[i] = from[i] ^ std::byte{kFreshByte};
}

}  // namespace

// Device memory is kept as the difference from a fresh byte: pages of zeros, which the machine has not handed out yet,
// then read as fresh memory.
void ReadBytes(const Memory& memory, uintptr_t address, std::byte* dest, size_t nbytes) {
  const std::byte* from = memory.bytes + (address - memory.begin);
  if (memory.kind != MemoryKind::kDevice) {
    std::memcpy(dest, from, nbytes);
    return;
  }
  CopyFlipped(from, dest, nbytes);
}

void WriteBytes(const Memory& memory, uintptr_t address, const std::byte* src, size_t nbytes) {
  std::byte* to = memory.bytes + (address - memory.begin);
  if (memory.kind != MemoryKind::kDevice) {
    std::memcpy(to, src, nbytes);
    return;
  }
  CopyFlipped(src, to, nbytes);
}

bool ReadHostSafely(uintptr_t address, std::byte* dest, size_t nbytes) {
  size_t done = 0;
  while (done < nbytes) {
    iovec local{dest + done, nbytes - done};
    iovec remote{reinterpret_cast<void*>(address + done), nbytes - done};
    ssize_t got = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
    if (got > 0) {
      done += static_cast<size_t>(got);
      continue;
    }
    if (got < 0 && errno == EFAULT) return false;
    if (got == 0) return false;
    // The system call is forbidden here (some containers): read it the ordinary way.
    std::memcpy(dest + done, reinterpret_cast<const void*>(address + done), nbytes - done);
    return true;
  }
  return true;
}

}  // namespace fake_cuda
