// Structs of the C ABI that say their own size: read and written no further than both sides know. The rules are in
// packalloc/c/types.h.
#ifndef PACKALLOC_LIB_C_SIZED_STRUCT_H_
#define PACKALLOC_LIB_C_SIZED_STRUCT_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "packalloc/c/packalloc.h"
#include "packalloc/c/plugin.h"

namespace packalloc {

// The bytes of a struct that every caller has: those of its first version, less slots that were optional from the
// start. Numbers, not sizeof: they stay when the struct grows.
template <typename T>
inline constexpr std::size_t kFirstVersion = 0;
template <>
inline constexpr std::size_t kFirstVersion<packalloc_buffer_spec> = 32;
template <>
inline constexpr std::size_t kFirstVersion<packalloc_device> = 56;
template <>
inline constexpr std::size_t kFirstVersion<packalloc_disk_source> = 32;
template <>
inline constexpr std::size_t kFirstVersion<packalloc_record> = 96;
template <>
inline constexpr std::size_t kFirstVersion<packalloc_backend> = 40;
template <>
inline constexpr std::size_t kFirstVersion<packalloc_cuda_options> = 32;
template <>
inline constexpr std::size_t kFirstVersion<packalloc_opencl_options> = 24;
template <>
inline constexpr std::size_t kFirstVersion<packalloc_traits> = 40;
template <>
inline constexpr std::size_t kFirstVersion<packalloc_cache_stats> = 112;

// More than any struct will ever have: a larger struct_size was not set.
inline constexpr std::size_t kMaxStructSize = 65536;

// The size that `from` says, or INVALID_ARGUMENT.
inline absl::StatusOr<std::size_t> StructSize(const void* from, std::size_t first_version, absl::string_view what) {
  if (from == nullptr) return absl::InvalidArgumentError(absl::StrCat("the ", what, " is NULL"));
  std::size_t size = 0;
  std::memcpy(&size, from, sizeof size);
  if (size >= first_version && size <= kMaxStructSize) return size;
  return absl::InvalidArgumentError(absl::StrCat("the ", what, " says that its struct_size is ", size,
                                                 " bytes; it is at least ", first_version, " and at most ",
                                                 kMaxStructSize, ": set it to sizeof"));
}

// How many bytes of a T lie in the whole fields of a struct of `size` bytes, which may end inside a field. Every field
// after the first version is one 8-byte word.
template <typename T>
std::size_t WholeFields(std::size_t size) {
  constexpr std::size_t kWord = 8;
  static_assert(sizeof(T) % kWord == 0 && kFirstVersion<T> % kWord == 0);
  return std::min(size - size % kWord, sizeof(T));
}

// What the caller asks for with fields that this library does not know.
enum class Unknown {
  kRefuse,  // options: they must be 0
  kIgnore,  // slots that are not called
};

// A copy of `*from`. A field that is not wholly inside struct_size is 0.
template <typename T>
absl::StatusOr<T> ReadStruct(const T* from, absl::string_view what, Unknown unknown) {
  static_assert(std::is_trivially_copyable_v<T> && kFirstVersion<T> != 0 && kFirstVersion<T> <= sizeof(T));
  absl::StatusOr<std::size_t> size = StructSize(from, kFirstVersion<T>, what);
  if (!size.ok()) return size.status();
  const auto* bytes = reinterpret_cast<const unsigned char*>(from);
  if (unknown == Unknown::kRefuse && *size > sizeof(T) &&
      std::any_of(bytes + sizeof(T), bytes + *size, [](unsigned char byte) { return byte != 0; })) {
    return absl::InvalidArgumentError(absl::StrCat("the ", what, " of ", *size,
                                                   " bytes sets fields that this version, which knows ", sizeof(T),
                                                   " bytes of it, does not have"));
  }
  T to{};
  std::memcpy(&to, bytes, WholeFields<T>(*size));
  to.struct_size = sizeof(T);
  return to;
}

// Fills in the fields of `*to` that lie wholly inside its struct_size, which stays. Fields that this library does not
// know become 0.
template <typename T>
absl::Status WriteStruct(T value, T* to, absl::string_view what) {
  static_assert(std::is_trivially_copyable_v<T> && kFirstVersion<T> != 0 && kFirstVersion<T> <= sizeof(T));
  absl::StatusOr<std::size_t> size = StructSize(to, kFirstVersion<T>, what);
  if (!size.ok()) return size.status();
  value.struct_size = *size;
  auto* bytes = reinterpret_cast<unsigned char*>(to);
  std::memcpy(bytes, &value, WholeFields<T>(*size));
  if (*size > sizeof(T)) std::memset(bytes + sizeof(T), 0, *size - sizeof(T));
  return absl::OkStatus();
}

}  // namespace packalloc

#endif  // PACKALLOC_LIB_C_SIZED_STRUCT_H_
