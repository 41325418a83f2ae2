// What the readers of lib/disk may do with a DiskFile beyond its public calls.
#ifndef PACKALLOC_LIB_DISK_DISK_FILE_ACCESS_H_
#define PACKALLOC_LIB_DISK_DISK_FILE_ACCESS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <system_error>

#include "absl/status/status.h"
#include "packalloc/disk_file.h"

namespace packalloc {

// The system's words for an errno.
inline std::string ErrorText(int error) { return std::generic_category().message(error); }

enum class ReadWay { kPageCache, kUring, kDirect, kBuffered };

class DiskFileAccess {
 public:
  static DiskSystemCalls& System(const DiskFile& file) { return *file.system_; }
  static int Fd(const DiskFile& file) { return file.fd_; }
  // A descriptor of the same file for direct I/O, or -1 where that is off or was refused.
  static int DirectFd(DiskFile& file);
  // Bytes; every offset, length and address of a direct read is a multiple of it.
  static std::size_t DirectAlignment(const DiskFile& file) { return file.direct_alignment_; }
  static void RefuseDirect(DiskFile& file, std::string why);
  static bool UringAllowed(const DiskFile& file);
  static void RefuseUring(DiskFile& file, std::string why);
  static void Count(DiskFile& file, ReadWay way, std::uint64_t nbytes);
  // Reads the rest of a range of which `got` bytes are there already, by plain pread; as DiskFile::Read.
  static absl::Status ReadRest(DiskFile& file, std::uint64_t offset, std::byte* to, std::size_t nbytes,
                               std::size_t got);
  static absl::Status ReadError(const DiskFile& file, std::uint64_t offset, std::size_t nbytes, std::size_t got,
                                int error);
};

}  // namespace packalloc

#endif  // PACKALLOC_LIB_DISK_DISK_FILE_ACCESS_H_
