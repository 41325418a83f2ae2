// DLPack imports: whatever the struct says, a tensor is taken whole or left to the caller, and its deleter is called
// once or not at all.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "lib/tensor/dlpack_abi.h"
#include "packalloc/tensor/dlpack.h"

using namespace packalloc;

namespace {

// The next bytes of the input; zero where there are none left.
struct Input {
  const std::uint8_t* at;
  std::size_t left;

  template <typename T>
  T Take() {
    T value{};
    const std::size_t n = left < sizeof value ? left : sizeof value;
    if (n != 0) std::memcpy(&value, at, n);
    at += n;
    left -= n;
    return value;
  }
};

void Count(DLManagedTensorVersioned* self) { ++*static_cast<int*>(dlpack_abi::From(self)->manager_ctx); }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input{data, size};
  alignas(64) static std::byte memory[64];
  std::int64_t shape[8];
  std::int64_t strides[8];
  int deleted = 0;
  dlpack_abi::ManagedVersioned managed{};
  managed.version = {input.Take<std::uint8_t>() % 3U, input.Take<std::uint8_t>()};
  managed.manager_ctx = &deleted;
  managed.deleter = &Count;
  managed.flags = input.Take<std::uint8_t>();
  dlpack_abi::Tensor& tensor = managed.dl_tensor;
  const auto absent = input.Take<std::uint8_t>();
  tensor.data = (absent & 1) != 0 ? nullptr : memory;
  tensor.device = {input.Take<std::uint8_t>() % 20, input.Take<std::uint8_t>()};
  tensor.ndim = input.Take<std::int8_t>() % 9;
  tensor.dtype = {input.Take<std::uint8_t>(), input.Take<std::uint8_t>(), input.Take<std::uint16_t>()};
  tensor.byte_offset = (absent & 8) != 0 ? input.Take<std::uint64_t>() : input.Take<std::uint8_t>();
  for (std::int64_t& dimension : shape) {
    dimension = (absent & 16) != 0 ? input.Take<std::int64_t>() : input.Take<std::int8_t>();
  }
  for (std::int64_t& stride : strides) stride = input.Take<std::int8_t>();
  tensor.shape = (absent & 2) != 0 ? nullptr : shape;
  tensor.strides = (absent & 4) != 0 ? nullptr : strides;

  {
    const absl::StatusOr<Tensor> imported = FromDlpack(dlpack_abi::ToPublic(&managed));
    if (!imported.ok()) return deleted == 0 ? 0 : (std::abort(), 0);
    if (managed.version.major != 1) std::abort();
    if (*TensorBytes(imported->shape(), imported->dtype(), imported->sub_byte()) != imported->nbytes()) std::abort();
    if (!ToDlpackVersioned(*imported).ok()) std::abort();
    if (imported->View({1}, kUInt8, imported->nbytes()).ok()) std::abort();
    if (deleted != 0) std::abort();
  }
  if (deleted != 1) std::abort();
  return 0;
}
