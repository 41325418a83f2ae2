#include "test/gpu/gpu.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "backends/cuda/error.h"
#include "lib/env.h"

namespace gpu {
namespace {

// Written by hand; any driver since CUDA 10.2 compiles it for the device that it has.
constexpr char kAddPtx[] = R"(
.version 6.5
.target sm_50
.address_size 64

.visible .entry add(.param .u64 words, .param .u32 n, .param .u32 amount, .param .u32 spin)
{
  .reg .pred %p<3>;
  .reg .u32 %r<10>;
  .reg .u64 %a<4>;

  mov.u32 %r1, %clock;
  ld.param.u32 %r2, [spin];
wait:
  mov.u32 %r3, %clock;
  sub.u32 %r3, %r3, %r1;
  setp.lt.u32 %p1, %r3, %r2;
  @%p1 bra wait;

  mov.u32 %r4, %ctaid.x;
  mov.u32 %r5, %ntid.x;
  mov.u32 %r6, %tid.x;
  mad.lo.u32 %r7, %r4, %r5, %r6;
  ld.param.u32 %r8, [n];
  setp.ge.u32 %p2, %r7, %r8;
  @%p2 bra done;

  ld.param.u64 %a1, [words];
  cvta.to.global.u64 %a1, %a1;
  mul.wide.u32 %a2, %r7, 4;
  add.u64 %a3, %a1, %a2;
  ld.param.u32 %r8, [amount];
  ld.global.u32 %r9, [%a3];
  add.u32 %r9, %r9, %r8;
  st.global.u32 [%a3], %r9;
done:
  ret;
}
)";

template <typename Function>
void Resolve(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace

void Results::Check(bool ok, absl::string_view what) {
  ++(ok ? passed : failed);
  if (!ok) std::printf("- FAILED: %.*s\n", static_cast<int>(what.size()), what.data());
  std::fflush(stdout);
}

bool Results::Ok(const absl::Status& status, absl::string_view what) {
  Check(status.ok(), status.ok() ? what : absl::StrCat(what, ": ", status.ToString()));
  return status.ok();
}

void Results::Code(const absl::Status& status, absl::StatusCode code, absl::string_view what) {
  Check(status.code() == code,
        absl::StrCat(what, ": wanted ", absl::StatusCodeToString(code), ", got ", status.ToString()));
}

void Results::Skip(absl::string_view what, absl::string_view why) {
  ++skipped;
  std::printf("- not tried: %.*s (%.*s)\n", static_cast<int>(what.size()), what.data(), static_cast<int>(why.size()),
              why.data());
}

Extra LoadExtra() {
  const std::string path = packalloc::EnvString("PACKALLOC_LIBCUDA").value_or("libcuda.so.1");
  Extra extra;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return extra;
  Resolve(library, "cuModuleLoadData", extra.load);
  Resolve(library, "cuModuleUnload", extra.unload);
  Resolve(library, "cuModuleGetFunction", extra.function);
  Resolve(library, "cuLaunchKernel", extra.launch);
  Resolve(library, "cuStreamBeginCapture_v2", extra.begin_capture);
  Resolve(library, "cuStreamEndCapture", extra.end_capture);
  Resolve(library, "cuGraphInstantiateWithFlags", extra.instantiate);
  Resolve(library, "cuGraphLaunch", extra.launch_graph);
  Resolve(library, "cuGraphExecDestroy", extra.destroy_exec);
  Resolve(library, "cuGraphDestroy", extra.destroy_graph);
  Resolve(library, "cuMemcpyHtoD_v2", extra.copy_in);
  Resolve(library, "cuMemcpyDtoH_v2", extra.copy_out);
  return extra;
}

absl::StatusOr<Device> Device::Open(const packalloc::CudaOptions& options) {
  Device device;
  absl::StatusOr<packalloc::Allocator<packalloc::CudaBuf>> record = packalloc::CudaAllocator(options);
  if (!record.ok()) return record.status();
  device.record_ = *std::move(record);
  device.native_ = packalloc::Find<packalloc::CudaNative>(device.record_);
  absl::StatusOr<const packalloc::internal::CudaDriver*> driver = packalloc::internal::CudaDriver::Get();
  if (!driver.ok()) return driver.status();
  device.driver_ = *driver;
  return device;
}

absl::StatusOr<AddKernel> AddKernel::Load(const Device& device, const Extra& extra) {
  AddKernel kernel;
  kernel.extra_ = extra;
  const Current current(device);
  if (const CUresult result = device.driver().Call(extra.load, &kernel.module_, kAddPtx); result != CUDA_SUCCESS) {
    return packalloc::internal::CudaError(device.driver(), "cuModuleLoadData", result);
  }
  if (const CUresult result = device.driver().Call(extra.function, &kernel.function_, kernel.module_, "add");
      result != CUDA_SUCCESS) {
    return packalloc::internal::CudaError(device.driver(), "cuModuleGetFunction", result);
  }
  return kernel;
}

CUresult AddKernel::Launch(const Device& device, CUdeviceptr words, std::uint32_t n, std::uint32_t amount,
                           std::uint32_t spin) const {
  const Current current(device);
  void* arguments[] = {&words, &n, &amount, &spin};
  return extra_.launch(function_, (n + 255) / 256, 1, 1, 256, 1, 1, 0, device.stream(), arguments, nullptr);
}

void AddKernel::Unload(const Device& device) {
  const Current current(device);
  device.driver().Call(extra_.unload, module_);
}

std::vector<std::byte> Pattern(std::size_t nbytes, std::uint32_t seed) {
  std::vector<std::byte> bytes(nbytes);
  std::uint32_t word = seed * 2654435761u + 1;
  for (std::size_t i = 0; i < nbytes; i += sizeof word) {
    word = word * 1664525u + 1013904223u;
    std::memcpy(bytes.data() + i, &word, nbytes - i < sizeof word ? nbytes - i : sizeof word);
  }
  return bytes;
}

absl::Span<const std::byte> AsBytes(const std::vector<std::uint32_t>& words) {
  return {reinterpret_cast<const std::byte*>(words.data()), words.size() * sizeof(std::uint32_t)};
}
absl::Span<std::byte> AsBytes(std::vector<std::uint32_t>& words) {
  return {reinterpret_cast<std::byte*>(words.data()), words.size() * sizeof(std::uint32_t)};
}

std::string Size(std::size_t nbytes) {
  if (nbytes >= std::size_t{1} << 30) return absl::StrCat(nbytes >> 30, " GiB");
  if (nbytes >= std::size_t{1} << 20) return absl::StrCat(nbytes >> 20, " MiB");
  if (nbytes >= std::size_t{1} << 10) return absl::StrCat(nbytes >> 10, " KiB");
  return absl::StrCat(nbytes, " B");
}

}  // namespace gpu
