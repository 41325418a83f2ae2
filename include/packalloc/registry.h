// Devices by name: Open("CUDA:1+lru:max_bytes=2GiB") gives the packed allocator of that device, whatever backends this
// program was built with and whatever this machine has.
//
//   absl::StatusOr<packalloc::PackedAllocator> device = packalloc::Open("CL:0+lru");
//   for (const packalloc::DeviceInfo& d : packalloc::Devices()) {
//     std::cout << d.name << ": " << (d.available ? d.description : d.reason) << '\n';
//   }
//   absl::StatusOr<packalloc::PackedAllocator> best = packalloc::Default();   // PACKALLOC_DEVICE, else CUDA, CL, CPU
//   absl::StatusOr<packalloc::PackedAllocator> mine =                         // over a stream that the engine has
//       packalloc::Open("CUDA:0", packalloc::CudaOptions{.stream = stream});
//
// A name is BACKEND[:TARGET][+LAYER[:KEY=VALUE,...]]..., the first layer innermost, with at most 32 layers:
//   CPU     CUDA:1     CPU+lru:max_bytes=64MiB,policy=gds,max_waste=0.125     DISK:"/data/a+b.bin"+checked
// The backend's name may be in lower case. A target or value that holds one of  + , "  stands in double quotes, with \"
// and \\ for a quote and a backslash in it. Sizes are bytes, or have KiB, MiB, GiB or TiB.
#ifndef PACKALLOC_REGISTRY_H_
#define PACKALLOC_REGISTRY_H_

#include <any>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "packalloc/backend.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {

// All of these may be called from any thread, from inside a backend's or a layer's functions too. No function of a
// backend is called under a lock; what one throws passes through, and nothing is remembered of a failed attempt.

// The allocator of that name: the same one each time, until Shutdown. Two spellings of one device (`CUDA` and `CUDA:0`)
// are one; layers and their parameters are part of the identity, as they are written (`1MiB` is not `1048576`). The
// same device under several stacks of layers is opened once. Files are the exception (Backend::shared): each Open of a
// DISK name is a new allocator, over what lies at the path now.
// PACKALLOC_LAYERS in the environment ("checked+traced:file=t.csv") lies on top of every name that a program opens; one
// that does not work is a warning on stderr, and is left out.
// INVALID_ARGUMENT for a malformed name, target or parameter, saying what is wrong with which part; NOT_FOUND for a
// backend, layer or device that is not known, saying which are; UNAVAILABLE where the backend cannot work on this
// machine, saying why; FAILED_PRECONDITION where opening the name needs that very name opened; else what the backend
// answers.
absl::StatusOr<PackedAllocator> Open(std::string_view name);

// A new allocator over `options`, the backend's own options struct (CudaOptions, ...): over the context and stream that
// a caller has. Never shared, not kept by the registry. INVALID_ARGUMENT for options of another backend; else as Open.
absl::StatusOr<PackedAllocator> Open(std::string_view name, std::any options);

// Every backend of this build and every registered one: its devices, or one unavailable entry with the reason.
std::vector<DeviceInfo> Devices();

// Open(PACKALLOC_DEVICE) where that variable is set; if that does not work, its error, naming the variable, and never
// another device. Else the first backend that works, in the order of Backend::default_rank (CUDA, CL, CPU), the same
// each time; UNAVAILABLE with every reason where none does.
absl::StatusOr<PackedAllocator> Default();

// Adds a backend. INVALID_ARGUMENT for a name that is not upper-case letters and digits, starting with a letter, or for
// one without `open`; ALREADY_EXISTS for a name that is taken. `devices` may be unset: it is then listed by its name.
absl::Status Register(Backend backend);

// Forgets every opened allocator, so that what no copy and no buffer holds is released now; names can be opened again,
// and registered backends stay. For tests and leak reports (a Checked layer that a buffer or copy still keeps alive
// tells what is allocated on stderr): nothing has to call it.
void Shutdown();

}  // namespace packalloc

#endif  // PACKALLOC_REGISTRY_H_
