// The ways in which a program of its own would read a file into memory, as plainly and as fast as each can be written:
// what the library's reader is measured against.
#ifndef PACKALLOC_BENCH_RAW_READERS_H_
#define PACKALLOC_BENCH_RAW_READERS_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace packalloc::bench {

struct RawReader {
  std::string name;
  // Reads all `nbytes` of the file into `to` (aligned to 2 MiB); false where the system refuses this way.
  std::function<bool(const std::string& path, std::byte* to, std::size_t nbytes)> read;
};

std::vector<RawReader> RawReaders();

}  // namespace packalloc::bench

#endif  // PACKALLOC_BENCH_RAW_READERS_H_
