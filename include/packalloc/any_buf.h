// AnyBuf: a packed allocator's buffer, a handle of any type in one 64-byte value. Engines keep AnyBufs (or Buffers) and
// never see a backend's handle; a kernel launcher that must takes it out by its type.
//
//   absl::StatusOr<packalloc::AnyBuf> buf = device.alloc(1024);
//   buf->nbytes();                              // 1024
//   buf->owner() == device.id();                // who made it
//   if (const packalloc::CpuBuf* cpu = buf->get<packalloc::CpuBuf>()) use(cpu->data);
//   packalloc::AnyBuf same = *buf;              // a copy of the handle: nothing is shared or counted
//   absl::Status freed = device.free(*buf, 1024);
#ifndef PACKALLOC_ANY_BUF_H_
#define PACKALLOC_ANY_BUF_H_

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "absl/status/status.h"

namespace packalloc {
namespace internal {

inline constexpr std::size_t kAnyBufStorage = 32;
inline constexpr std::size_t kAnyBufAlignment = 16;

// How to copy, move and destroy one type of handle inside an AnyBuf. A null function means "as raw bytes".
struct BufType {
  const std::type_info* info;
  void (*copy)(void* to, const void* from);
  void (*move)(void* to, void* from) noexcept;
  void (*destroy)(void* at) noexcept;
  void (*make_empty)(void* at);  // a value-initialised handle, for buffers of zero bytes; null: there is none
  bool in_place;
};

template <typename Buf>
inline constexpr bool kBufInPlace = sizeof(Buf) <= kAnyBufStorage &&
                                    alignof(Buf) <= kAnyBufAlignment&& std::is_nothrow_move_constructible_v<Buf>;

template <typename Buf>
struct BufTypeOf {
  static constexpr bool kInPlace = kBufInPlace<Buf>;
  static constexpr bool kRaw = kInPlace && std::is_trivially_copyable_v<Buf>;

  template <typename... Args>
  static void Construct(void* at, Args&&... args) {
    if constexpr (kInPlace) {
      ::new (at) Buf(std::forward<Args>(args)...);
    } else {
      ::new (at) Buf*(new Buf(std::forward<Args>(args)...));
    }
  }
  static const Buf* Get(const void* at) {
    if constexpr (kInPlace) {
      return std::launder(static_cast<const Buf*>(at));
    } else {
      return *std::launder(static_cast<Buf* const*>(at));
    }
  }
  static void Copy(void* to, const void* from) { Construct(to, *Get(from)); }
  static void Move(void* to, void* from) noexcept {
    if constexpr (kInPlace) {
      ::new (to) Buf(std::move(*std::launder(static_cast<Buf*>(from))));
    } else {
      ::new (to) Buf*(std::exchange(*std::launder(static_cast<Buf**>(from)), nullptr));
    }
  }
  static void Destroy(void* at) noexcept {
    if constexpr (kInPlace) {
      std::launder(static_cast<Buf*>(at))->~Buf();
    } else {
      delete *std::launder(static_cast<Buf**>(at));
    }
  }
  static void MakeEmpty(void* at) {
    if constexpr (std::default_initializable<Buf>) Construct(at, Buf());
  }
  static constexpr BufType kType{&typeid(Buf),
                                 kRaw ? nullptr : &Copy,
                                 kRaw ? nullptr : &Move,
                                 kRaw ? nullptr : &Destroy,
                                 std::default_initializable<Buf> ? &MakeEmpty : nullptr,
                                 kInPlace};
};

bool SameTypeInfo(const BufType* a, const BufType* b);  // of two libraries with hidden symbols; null is no type
inline bool SameType(const BufType* a, const BufType* b) {
  if (a == b) [[likely]]
    return true;
  return SameTypeInfo(a, b);
}

// Each thread leases 2^24 serial numbers at a time: unique without an atomic operation per call.
inline constexpr std::uint64_t kSerialLease = std::uint64_t{1} << 24;
extern constinit thread_local std::uint64_t next_serial;
std::uint64_t LeaseSerials();
inline std::uint64_t NextSerial() { return (next_serial & (kSerialLease - 1)) == 0 ? LeaseSerials() : next_serial++; }

struct DirectAlloc;
template <typename Buf>
struct TypedCalls;

}  // namespace internal

class PackedAllocator;

// The handle of a packed allocator's buffer: 64 bytes, a copyable value that owns nothing. Handles of up to 32 bytes
// that move without throwing lie in place, others on the heap. Default-constructed or moved-from it is empty, and every
// operation refuses it. Reading one from several threads is safe.
class AnyBuf {
 public:
  AnyBuf() noexcept = default;
  AnyBuf(const AnyBuf& other) { CopyFrom(other); }
  AnyBuf(AnyBuf&& other) noexcept { MoveFrom(other); }
  AnyBuf& operator=(const AnyBuf& other) {
    if (this != &other) *this = AnyBuf(other);
    return *this;
  }
  AnyBuf& operator=(AnyBuf&& other) noexcept {
    if (this != &other) {
      Destroy();
      MoveFrom(other);
    }
    return *this;
  }
  ~AnyBuf() { Destroy(); }

  // Boxes a typed handle. For authors of layers; `nbytes` kUnknownSize where only the typed caller knows it.
  template <typename Buf>
  static AnyBuf Of(Buf buf, std::size_t nbytes) {
    return AnyBuf(std::in_place_type<Buf>, std::move(buf), nbytes);
  }
  static constexpr std::size_t kUnknownSize = std::numeric_limits<std::size_t>::max();

  // The typed handle, valid as long as this box; null when it holds another type or nothing.
  template <typename Buf>
  const Buf* get() const {
    if (!internal::SameType(type_, &internal::BufTypeOf<Buf>::kType)) return nullptr;
    return internal::BufTypeOf<Buf>::Get(storage_);
  }

  // Boxes a typed handle where the result is to be, as moving an AnyBuf costs more than making one.
  template <typename Buf>
  AnyBuf(std::in_place_type_t<Buf>, Buf buf, std::size_t nbytes)
      : type_(&internal::BufTypeOf<Buf>::kType), nbytes_(nbytes) {
    internal::BufTypeOf<Buf>::Construct(storage_, std::move(buf));
  }

  // The handle of `other` as that of a new buffer of `nbytes`, which has neither an owner nor a serial number yet. For
  // authors of layers that serve the same memory again, as a cache does. Copies the handle, which may throw.
  AnyBuf(const AnyBuf& other, std::size_t nbytes) {
    CopyFrom(other);
    owner_ = 0;
    serial_ = 0;
    nbytes_ = nbytes;
  }

  bool empty() const { return type_ == nullptr; }
  // Bytes as asked for (of a view: the view's).
  std::size_t nbytes() const { return nbytes_; }
  // The id of the packed allocator that made it (PackedAllocator::id), 0 for none. Never reused.
  std::uint64_t owner() const { return owner_; }
  // Unique per allocation in the process; a view has its base's, and so has each part of a buffer that a layer cuts up.
  // It is given once, by the innermost layer that remembers its buffers (Identify) or else by the box, and every layer
  // and box further out keeps it.
  std::uint64_t serial() const { return serial_ & ~kViewBit; }
  // For authors of layers: gives a handle without a serial number the next one, and returns the number.
  std::uint64_t Identify() {
    if (serial() == 0) serial_ = internal::NextSerial();
    return serial();
  }
  // For authors of layers that make another handle to memory of `same`, as between guard zones: gives it that number.
  void IdentifyAs(const AnyBuf& same) { serial_ = same.serial(); }
  bool is_view() const { return (serial_ & kViewBit) != 0; }
  // Whether copying runs no code of the handle's type, and so neither throws nor calls anything.
  bool copies_as_bytes() const { return type_ == nullptr || type_->copy == nullptr; }

 private:
  friend class PackedAllocator;
  friend struct internal::DirectAlloc;
  template <typename Buf>
  friend struct internal::TypedCalls;
  static constexpr std::uint64_t kViewBit = std::uint64_t{1} << 63;

  void CopyFrom(const AnyBuf& other) {
    if (other.type_ == nullptr || other.type_->copy == nullptr) {
      CopyRaw(other);
    } else {
      other.type_->copy(storage_, other.storage_);
      CopyFields(other);
    }
  }
  void MoveFrom(AnyBuf& other) noexcept {
    if (other.type_ == nullptr || other.type_->move == nullptr) {
      CopyRaw(other);
    } else {
      other.type_->move(storage_, other.storage_);
      other.type_->destroy(other.storage_);
      CopyFields(other);
    }
    other.type_ = nullptr;
    other.owner_ = 0;  // an empty box is nobody's: the check of the owner finds it
  }
  void CopyRaw(const AnyBuf& other) noexcept {
    std::memcpy(storage_, other.storage_, sizeof storage_);
    CopyFields(other);
  }
  void CopyFields(const AnyBuf& other) noexcept {
    type_ = other.type_;
    owner_ = other.owner_;
    nbytes_ = other.nbytes_;
    serial_ = other.serial_;
  }
  void Destroy() noexcept {
    if (type_ != nullptr && type_->destroy != nullptr) type_->destroy(storage_);
  }

  alignas(internal::kAnyBufAlignment) std::byte storage_[internal::kAnyBufStorage]{};
  const internal::BufType* type_ = nullptr;
  std::uint64_t owner_ = 0;  // 0 where type_ is null
  std::uint64_t serial_ = 0;
  std::size_t nbytes_ = 0;
};
static_assert(sizeof(AnyBuf) == 64);

namespace internal {

absl::Status WrongType(const AnyBuf& buf, const std::type_info& wanted);

template <typename Buf>
absl::Status CheckType(const AnyBuf& buf) {
  return buf.get<Buf>() != nullptr ? absl::OkStatus() : WrongType(buf, typeid(Buf));
}

}  // namespace internal
}  // namespace packalloc

#endif  // PACKALLOC_ANY_BUF_H_
