// The code of docs/interop/dlpack.md.
#include "packalloc/tensor/dlpack.h"

#include <dlpack/dlpack.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "packalloc/registry.h"
#include "packalloc/tensor/tensor_pool.h"

namespace {

int failures = 0;
void Expect(bool condition, const char* what) {
  if (condition) return;
  std::printf("not true: %s\n", what);
  ++failures;
}

// Another library: takes a tensor over, and gives it back some time.
struct Consumer {
  DLManagedTensor* taken = nullptr;
  void Take(DLManagedTensor* managed) { taken = managed; }
  ~Consumer() {
    if (taken != nullptr) taken->deleter(taken);
  }
};

absl::Status Export() {
  packalloc::TensorPool pool = *packalloc::TensorPool::Make(*packalloc::Open("CPU"));
  Consumer consumer;
  // [snippet export]
  absl::StatusOr<packalloc::Tensor> tensor = pool.Empty({2, 3}, packalloc::kFloat32);
  if (!tensor.ok()) return tensor.status();
  absl::StatusOr<packalloc::DlpackPtr> managed = packalloc::ToDlpack(*tensor);
  if (!managed.ok()) return managed.status();
  consumer.Take(managed->release());  // before this, the unique_ptr would call the deleter
  // [/snippet export]
  Expect(consumer.taken->dl_tensor.ndim == 2, "the consumer has it");

  // [snippet buffer]
  packalloc::Buffer weights(*packalloc::Open("CPU"), 4096);
  absl::StatusOr<packalloc::Tensor> as_tensor = packalloc::Tensor::Over(weights, {1024}, packalloc::kFloat32);
  if (!as_tensor.ok()) return as_tensor.status();
  absl::StatusOr<packalloc::DlpackVersionedPtr> exported = packalloc::ToDlpackVersioned(*as_tensor);
  // [/snippet buffer]
  Expect(exported.ok(), "a buffer went out");

  // [snippet read_only]
  absl::StatusOr<packalloc::Tensor> constant =
      packalloc::Tensor::Over(weights, {1024}, packalloc::kFloat32, {.read_only = true});
  if (!constant.ok()) return constant.status();
  absl::StatusOr<packalloc::DlpackVersionedPtr> said = packalloc::ToDlpackVersioned(*constant);  // with flag 1
  // [/snippet read_only]
  Expect(said.ok(), "a read-only tensor went out");
  Expect(!packalloc::ToDlpack(*constant).ok(), "the older struct cannot say so");
  return absl::OkStatus();
}

absl::Status Import() {
  packalloc::TensorPool producer = *packalloc::TensorPool::Make(*packalloc::Open("CPU"));
  DLManagedTensor* managed = packalloc::ToDlpack(*producer.Empty({8}, packalloc::kInt32))->release();
  // [snippet import]
  absl::StatusOr<packalloc::Tensor> tensor = packalloc::FromDlpack(managed);
  if (!tensor.ok()) {
    managed->deleter(managed);  // an error leaves it ours
    return tensor.status();
  }
  std::vector<std::byte> host(tensor->nbytes());
  if (absl::Status read = tensor->CopyOut(absl::MakeSpan(host)); !read.ok()) return read;
  // [/snippet import]
  Expect(host.size() == 32, "eight numbers");
  return absl::OkStatus();
}

}  // namespace

int main() {
  for (const absl::Status& done : {Export(), Import()}) {
    if (!done.ok()) {
      std::printf("%s\n", done.ToString().c_str());
      ++failures;
    }
  }
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
