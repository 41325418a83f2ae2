// Clauses on copyin, copyout, transfer and copy_from_disk.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "lib/testing/run.h"
#include "packalloc/disk_file.h"

namespace packalloc::testing {
namespace {

void Late(Run& run, std::size_t n, std::uint32_t seed) {
  Block& block = run.Alloc(n);
  Bytes source = Pattern(seed, n);
  run.Write(block.buf, source);
  std::fill(source.begin(), source.end(), std::byte{0xEE});
  run.Holds(block.buf, n, seed, absl::StrCat("a copyin of ", n, " bytes whose source changed after it returned"));
  run.Free(block);
}

void ConsumesSource(Run& run) {
  for (const std::size_t n : {std::size_t{1}, std::size_t{64}, std::size_t{5000}, std::size_t{70001},
                              (std::size_t{1} << 20) + 1, run.options().large_bytes}) {
    Late(run, n, static_cast<std::uint32_t>(n));
  }
}

// Several copies in flight at once from one source: none may read it late.
void ConsumesSourceInFlight(Run& run) {
  const std::size_t n = 30000;
  Bytes source;
  std::vector<Block*> blocks;
  for (std::uint32_t i = 0; i < 16; ++i) {
    blocks.push_back(&run.Alloc(n));
    source = Pattern(i, n);
    run.Write(blocks.back()->buf, source);
  }
  std::fill(source.begin(), source.end(), std::byte{0xEE});
  for (std::uint32_t i = 0; i < 16; ++i) run.Holds(blocks[i]->buf, n, i, "one of 16 copyins in a row");
}

void CopyinExact(Run& run) {
  const std::size_t n = 9001;
  for (const std::size_t part : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{4096}, n - 1, n}) {
    Block& block = run.Alloc(n);
    run.Fill(block.buf, n, 1);
    run.Fill(block.buf, part, 2);
    Bytes wanted = Pattern(1, n);
    const Bytes front = Pattern(2, part);
    std::copy(front.begin(), front.end(), wanted.begin());
    run.Holds(block.buf, wanted, absl::StrCat("a buffer of ", n, " bytes after copyin of ", part));
    run.Free(block);
  }
}

void CopyinUnaligned(Run& run) {
  const std::size_t n = 4099;
  Block& block = run.Alloc(n);
  const Bytes source = Pattern(3, n + 16);
  for (std::size_t shift = 0; shift < 16; ++shift) {
    const auto part = absl::MakeConstSpan(source).subspan(shift, n);
    run.Write(block.buf, part);
    run.Holds(block.buf, part, absl::StrCat("copyin from an address shifted by ", shift));
  }
}

void CopyinOrdered(Run& run) {
  const std::size_t n = 50000;
  Block& block = run.Alloc(n);
  for (std::uint32_t i = 0; i < 20; ++i) run.Fill(block.buf, n, i);
  run.Holds(block.buf, n, 19, "the last of 20 copyins");
}

void CopyinOutOfRange(Run& run) {
  Block& block = run.Alloc(1000);
  run.Fill(block.buf, 1000, 1);
  run.ExpectCode(run.record().copyin(block.buf, Pattern(2, 1001)), absl::StatusCode::kOutOfRange,
                 "copyin of 1001 bytes to a buffer of 1000");
  run.Holds(block.buf, 1000, 1, "a buffer after a refused copyin");
}

void CopyoutComplete(Run& run) {
  for (const std::size_t n : {std::size_t{1}, std::size_t{4097}, run.options().large_bytes}) {
    Block& block = run.Alloc(n);
    run.Fill(block.buf, n, 4);
    run.Holds(block.buf, n, 4, absl::StrCat("copyout of ", n, " bytes"));
    run.Free(block);
  }
}

void CopyoutExact(Run& run) {
  const std::size_t n = 9001;
  Block& block = run.Alloc(n);
  run.Fill(block.buf, n, 5);
  for (const std::size_t part : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{4096}, n - 1, n}) {
    run.Holds(block.buf, part, 5, absl::StrCat("the first ", part, " bytes"));
  }
}

void CopyoutKeepsSource(Run& run) {
  Block& block = run.Alloc(5000);
  run.Fill(block.buf, 5000, 6);
  for (int i = 0; i < 3; ++i) run.Holds(block.buf, 5000, 6, "a buffer that is read again");
}

void CopyoutOutOfRange(Run& run) {
  Block& block = run.Alloc(1000);
  run.Fill(block.buf, 1000, 7);
  Bytes dest(1001, std::byte{0xA5});
  run.ExpectCode(run.record().copyout(absl::MakeSpan(dest), block.buf), absl::StatusCode::kOutOfRange,
                 "copyout of 1001 bytes from a buffer of 1000");
  run.Expect(std::all_of(dest.begin(), dest.end(), [](std::byte b) { return b == std::byte{0xA5}; }),
             "a refused copyout wrote to its destination");
}

// ---- transfer ----

void TransferExact(Run& run) {
  const std::size_t n = 9001;
  Block& a = run.Alloc(n);
  Block& b = run.Alloc(n);
  run.Fill(a.buf, n, 1);
  for (const std::size_t part : {std::size_t{0}, std::size_t{1}, std::size_t{4096}, n - 1, n}) {
    run.Fill(b.buf, n, 2);
    run.Transfer(b.buf, a.buf, part);
    Bytes wanted = Pattern(2, n);
    const Bytes front = Pattern(1, part);
    std::copy(front.begin(), front.end(), wanted.begin());
    run.Holds(b.buf, wanted, absl::StrCat("a buffer of ", n, " bytes after a transfer of ", part));
    run.Holds(a.buf, n, 1, "the source of a transfer");
  }
}

void TransferLarge(Run& run) {
  const std::size_t n = run.options().large_bytes;
  Block& a = run.Alloc(n);
  Block& b = run.Alloc(n);
  run.Fill(a.buf, n, 3);
  run.Transfer(b.buf, a.buf, n);
  run.Holds(b.buf, n, 3, absl::StrCat("a transfer of ", n, " bytes"));
}

// The copy is of what the source held when the transfer was issued.
void TransferOrdered(Run& run) {
  const std::size_t n = 60000;
  Block& a = run.Alloc(n);
  Block& b = run.Alloc(n);
  Block& c = run.Alloc(n);
  run.Fill(a.buf, n, 1);
  run.Transfer(b.buf, a.buf, n);
  run.Fill(a.buf, n, 2);
  run.Transfer(c.buf, a.buf, n);
  run.Fill(a.buf, n, 3);
  run.Holds(c.buf, n, 2, "the destination of a transfer whose source was written afterwards");
  run.Holds(b.buf, n, 1, "the destination of a transfer whose source was written twice afterwards");
  run.Transfer(a.buf, b.buf, n);
  run.Transfer(b.buf, c.buf, n);
  run.Holds(b.buf, n, 2, "a transfer onto the source of the one before");
  run.Holds(a.buf, n, 1, "a transfer from a buffer that was overwritten afterwards");
}

void TransferSelf(Run& run) {
  Block& a = run.Alloc(5000);
  run.Fill(a.buf, 5000, 4);
  run.Transfer(a.buf, a.buf, 5000);
  run.Holds(a.buf, 5000, 4, "a buffer that was transferred to itself");
}

void TransferOverlap(Run& run) {
  // By one byte, by less than a vector, by a page and a bit: memcpy is right for some distances only.
  for (const std::size_t distance : {std::size_t{1}, std::size_t{16}, std::size_t{1000}, std::size_t{5000}}) {
    const std::size_t length = 20000;
    const std::size_t n = length + distance;
    for (const bool forward : {true, false}) {
      Block& block = run.Alloc(n);
      run.Fill(block.buf, n, 5);
      const std::size_t from = forward ? 0 : distance;
      const std::size_t to = forward ? distance : 0;
      run.Transfer(run.View(block.buf, length, to), run.View(block.buf, length, from), length);
      Bytes wanted = Pattern(5, n);
      const Bytes before = wanted;
      std::copy_n(before.begin() + static_cast<std::ptrdiff_t>(from), length,
                  wanted.begin() + static_cast<std::ptrdiff_t>(to));
      run.Holds(block.buf, wanted, absl::StrCat("an overlapping transfer ", forward ? "up" : "down", " by ", distance));
      run.Free(block);
    }
  }
}

void TransferViews(Run& run) {
  Block& a = run.Alloc(1000);
  Block& b = run.Alloc(1000);
  run.Fill(a.buf, 1000, 6);
  run.Fill(b.buf, 1000, 7);
  run.Transfer(run.View(b.buf, 300, 513), run.View(a.buf, 300, 77), 299);
  Bytes wanted = Pattern(7, 1000);
  const Bytes source = Pattern(6, 1000);
  std::copy_n(source.begin() + 77, 299, wanted.begin() + 513);
  run.Holds(b.buf, wanted, "a transfer of 299 bytes from a view at 77 to one at 513");
  run.Transfer(b.buf, run.View(a.buf, 10, 5), 10);
  std::copy_n(source.begin() + 5, 10, wanted.begin());
  run.Holds(b.buf, wanted, "a transfer from a view to a whole buffer");
}

void TransferOutOfRange(Run& run) {
  Block& small = run.Alloc(100);
  Block& large = run.Alloc(200);
  run.Fill(small.buf, 100, 1);
  run.Fill(large.buf, 200, 2);
  run.ExpectCode(run.record().transfer(small.buf, large.buf, 101), absl::StatusCode::kOutOfRange,
                 "a transfer of 101 bytes to a buffer of 100");
  run.ExpectCode(run.record().transfer(large.buf, small.buf, 101), absl::StatusCode::kOutOfRange,
                 "a transfer of 101 bytes from a buffer of 100");
  run.Holds(small.buf, 100, 1, "the smaller buffer after a refused transfer");
  run.Holds(large.buf, 200, 2, "the larger buffer after a refused transfer");
}

void TransferKinds(Run& run) {
  for (const BufferSpec& spec : {BufferSpec{.host = true}, BufferSpec{.cpu_access = true}, BufferSpec{.zero = true}}) {
    Block* other = run.AllocIfGranted(3000, spec);
    if (other == nullptr) continue;
    Block& plain = run.Alloc(3000);
    run.Fill(other->buf, 3000, 8);
    run.Transfer(plain.buf, other->buf, 3000);
    run.Holds(plain.buf, 3000, 8, absl::StrCat("a transfer from a buffer with ", ToString(spec)));
    run.Fill(plain.buf, 3000, 9);
    run.Transfer(other->buf, plain.buf, 3000);
    run.Holds(other->buf, 3000, 9, absl::StrCat("a transfer to a buffer with ", ToString(spec)));
  }
}

// ---- copy_from_disk ----

// A temporary file, unlinked at once: the extent keeps it open.
absl::StatusOr<DiskExtent> TemporaryExtent(const Bytes& bytes) {
  std::error_code error;
  std::string path = (std::filesystem::temp_directory_path(error) / "packalloc-contract-XXXXXX").string();
  const int fd = mkstemp(path.data());
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", path));
  close(fd);
  absl::StatusOr<std::shared_ptr<DiskFile>> file = DiskFile::Open(path, {.write = true});
  unlink(path.c_str());
  if (!file.ok()) return file.status();
  if (absl::Status grown = (*file)->GrowTo(bytes.size()); !grown.ok()) return grown;
  if (absl::Status written = (*file)->Write(0, bytes); !written.ok()) return written;
  return DiskExtent{*std::move(file), 0, bytes.size()};
}

DiskExtent Extent(Run& run, std::uint32_t seed, std::size_t nbytes) {
  const Bytes bytes = Pattern(seed, nbytes);
  absl::StatusOr<DiskExtent> extent =
      run.options().make_extent ? run.options().make_extent(bytes) : TemporaryExtent(bytes);
  run.RequireOk(extent.status(), "making an extent");
  return *std::move(extent);
}

void DiskExact(Run& run) {
  for (const std::size_t n : {std::size_t{1}, std::size_t{9001}, run.options().large_bytes}) {
    const DiskExtent extent = Extent(run, 1, n);
    for (const std::size_t part : {n / 2, n}) {
      Block& block = run.Alloc(n);
      run.Fill(block.buf, n, 2);
      run.RequireOk(run.record().copy_from_disk(block.buf, extent, part), absl::StrCat("copy_from_disk of ", part));
      Bytes wanted = Pattern(2, n);
      const Bytes front = Pattern(1, part);
      std::copy(front.begin(), front.end(), wanted.begin());
      run.Holds(block.buf, wanted, absl::StrCat("a buffer of ", n, " bytes after copy_from_disk of ", part));
      run.Free(block);
    }
  }
}

void DiskOutOfRange(Run& run) {
  const DiskExtent extent = Extent(run, 1, 100);
  Block& large = run.Alloc(200);
  run.Fill(large.buf, 200, 2);
  run.ExpectCode(run.record().copy_from_disk(large.buf, extent, 101), absl::StatusCode::kOutOfRange,
                 "copy_from_disk of 101 bytes from an extent of 100");
  Block& small = run.Alloc(50);
  run.ExpectCode(run.record().copy_from_disk(small.buf, extent, 51), absl::StatusCode::kOutOfRange,
                 "copy_from_disk of 51 bytes to a buffer of 50");
  run.Holds(large.buf, 200, 2, "a buffer after a refused copy_from_disk");
}

}  // namespace

const ClauseList& CopyClauses() {
  static const ClauseList& list = *new ClauseList{
      {"copyin.consumes_source", "the source may change as soon as copyin returns", kBytes, ConsumesSource},
      {"copyin.consumes_source_in_flight", "so for copies in a row from one source", kBytes, ConsumesSourceInFlight},
      {"copyin.exact", "copyin writes the bytes of its span and no others", kBytes, CopyinExact},
      {"copyin.unaligned_source", "the source may lie at any address", kBytes, CopyinUnaligned},
      {"copyin.ordered", "copies take effect in the order issued", kBytes, CopyinOrdered},
      {"copyin.out_of_range", "more bytes than the buffer has are OUT_OF_RANGE, nothing written", kBytes | kRanges,
       CopyinOutOfRange},
      {"copyout.complete", "the destination is filled when copyout returns", kBytes, CopyoutComplete},
      {"copyout.exact", "copyout writes its span and no other byte", kBytes, CopyoutExact},
      {"copyout.keeps_source", "copyout changes nothing on the device", kBytes, CopyoutKeepsSource},
      {"copyout.out_of_range", "more bytes than the buffer has are OUT_OF_RANGE, nothing written", kBytes | kRanges,
       CopyoutOutOfRange},
  };
  return list;
}

const ClauseList& TransferClauses() {
  static const ClauseList& list = *new ClauseList{
      {"transfer.exact", "transfer copies nbytes and no others, and keeps the source", kBytes | kTransfer,
       TransferExact},
      {"transfer.large", "transfer of many bytes is whole", kBytes | kTransfer, TransferLarge},
      {"transfer.ordered", "transfer copies what the source held when issued", kBytes | kTransfer, TransferOrdered},
      {"transfer.self", "transfer of a buffer to itself changes nothing", kBytes | kTransfer, TransferSelf},
      {"transfer.overlap", "overlapping transfers are as memmove", kBytes | kTransfer | kOffset, TransferOverlap},
      {"transfer.views", "transfer respects the offsets of both views", kBytes | kTransfer | kOffset, TransferViews},
      {"transfer.kinds", "transfer works between buffers of all granted specs", kBytes | kTransfer, TransferKinds},
      {"transfer.out_of_range", "more bytes than either buffer has are OUT_OF_RANGE", kBytes | kTransfer | kRanges,
       TransferOutOfRange},
  };
  return list;
}

const ClauseList& DiskClauses() {
  static const ClauseList& list = *new ClauseList{
      {"copy_from_disk.exact", "copy_from_disk writes the file's bytes and no others", kBytes | kDisk, DiskExact},
      {"copy_from_disk.out_of_range", "more bytes than extent or buffer have are OUT_OF_RANGE",
       kBytes | kDisk | kRanges, DiskOutOfRange},
  };
  return list;
}

}  // namespace packalloc::testing
