#include "lib/testing/run.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <thread>

namespace packalloc::testing {
namespace {

constexpr std::size_t kGuard = 64;
constexpr std::byte kGuardByte{0xA5};
constexpr std::size_t kMostNotes = 5;  // of one clause: the first ones tell

std::string Hex(std::byte b) { return absl::StrCat("0x", absl::Hex(static_cast<unsigned>(b), absl::kZeroPad2)); }

}  // namespace

// Byte i is 151 * seed + 7 * i + 13 * (i / 2^8) + 29 * (i / 2^16) + 1, so that rows of 256 nearby differ, and seeds
// nearby too. Each row is a piece of the multiples of 7: a loop over bytes takes sanitizers most of the suite's time.
Bytes Pattern(std::uint32_t seed, std::size_t nbytes) {
  constexpr std::size_t kRow = 256;
  constexpr std::size_t kInverseOf7 = 183;  // modulo 256
  static const auto multiples = [] {
    std::array<std::byte, 2 * kRow> bytes;
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(7 * i);
    return bytes;
  }();
  Bytes bytes(nbytes);
  for (std::size_t at = 0; at < nbytes; at += kRow) {
    const std::size_t first = std::size_t{seed} * 151 + (at >> 8) * 13 + (at >> 16) * 29 + 1;
    std::copy_n(&multiples[first * kInverseOf7 % kRow], std::min(kRow, nbytes - at), &bytes[at]);
  }
  return bytes;
}

Subject Run::Another() {
  absl::StatusOr<Subject> subject = factory_();
  RequireOk(subject.status(), "the factory's next record");
  return *std::move(subject);
}

void Run::Note(std::string what) {
  const std::lock_guard lock(mutex_);
  if (violations_.size() < kMostNotes) violations_.push_back(std::move(what));
}

void Run::ExpectOk(const absl::Status& status, const std::string& what) {
  if (!status.ok()) Fail(what, " failed: ", status.ToString());
}

void Run::RequireOk(const absl::Status& status, const std::string& what) {
  ExpectOk(status, what);
  if (!status.ok()) throw Stop();
}

void Run::ExpectCode(const absl::Status& status, absl::StatusCode code, const std::string& what) {
  if (status.code() == code) return;
  Fail(what, " is to be ", absl::StatusCodeToString(code), ", but was ", status.ToString());
}

absl::StatusOr<Block*> Run::TryAlloc(std::size_t nbytes, const BufferSpec& spec) {
  absl::StatusOr<AnyBuf> buf = record().alloc(nbytes, spec);
  if (!buf.ok()) return buf.status();
  return &Keep(*std::move(buf), nbytes, spec);
}

Block& Run::Keep(AnyBuf buf, std::size_t nbytes, const BufferSpec& spec) {
  const std::lock_guard lock(mutex_);
  return blocks_.emplace_back(Block{std::move(buf), nbytes, spec});
}

Block& Run::Alloc(std::size_t nbytes, const BufferSpec& spec) {
  absl::StatusOr<Block*> block = TryAlloc(nbytes, spec);
  RequireOk(block.status(), absl::StrCat("alloc of ", nbytes, " bytes with ", ToString(spec)));
  return **block;
}

Block* Run::AllocIfGranted(std::size_t nbytes, const BufferSpec& spec) {
  absl::StatusOr<Block*> block = TryAlloc(nbytes, spec);
  if (absl::IsInvalidArgument(block.status())) return nullptr;
  RequireOk(block.status(), absl::StrCat("alloc of ", nbytes, " bytes with ", ToString(spec),
                                         ", which is to be honoured or INVALID_ARGUMENT,"));
  return *block;
}

void Run::Free(Block& block) {
  block.freed = true;
  ExpectOk(record().free(block.buf, block.nbytes, block.spec),
           absl::StrCat("free of ", block.nbytes, " bytes with ", ToString(block.spec)));
}

Block& Run::AllocHost(std::size_t nbytes) {
  for (const BufferSpec& spec : {BufferSpec{}, BufferSpec{.host = true}, BufferSpec{.cpu_access = true}}) {
    Block* block = AllocIfGranted(nbytes, spec);
    if (block == nullptr) continue;
    if (record().host_ptr(block->buf).ok()) return *block;
    Free(*block);
  }
  throw NotApplicable{"no buffer of this record is host memory"};
}

AnyBuf Run::View(const AnyBuf& buf, std::size_t nbytes, std::size_t byte_offset) {
  absl::StatusOr<AnyBuf> view = record().offset(buf, nbytes, byte_offset);
  RequireOk(view.status(), absl::StrCat("a view of ", nbytes, " bytes at byte offset ", byte_offset));
  return *std::move(view);
}

void Run::Write(const AnyBuf& dest, absl::Span<const std::byte> bytes) {
  RequireOk(record().copyin(dest, bytes), absl::StrCat("copyin of ", bytes.size(), " bytes"));
}

Bytes Run::Read(const AnyBuf& src, std::size_t nbytes) {
  Bytes guarded(nbytes + 2 * kGuard, kGuardByte);
  RequireOk(record().copyout(absl::MakeSpan(guarded).subspan(kGuard, nbytes), src),
            absl::StrCat("copyout of ", nbytes, " bytes"));
  const auto intact = [&](std::size_t from) {
    return std::all_of(guarded.begin() + static_cast<std::ptrdiff_t>(from),
                       guarded.begin() + static_cast<std::ptrdiff_t>(from + kGuard),
                       [](std::byte b) { return b == kGuardByte; });
  };
  Expect(intact(0) && intact(kGuard + nbytes), "copyout of ", nbytes, " bytes wrote outside its destination");
  return {guarded.begin() + kGuard, guarded.begin() + static_cast<std::ptrdiff_t>(kGuard + nbytes)};
}

bool Run::Same(absl::Span<const std::byte> got, absl::Span<const std::byte> wanted, const std::string& what) {
  if (wanted.empty() || std::memcmp(got.data(), wanted.data(), wanted.size()) == 0) return true;
  const std::size_t at = std::mismatch(wanted.begin(), wanted.end(), got.begin()).first - wanted.begin();
  Fail(what, ": byte ", at, " of ", wanted.size(), " is ", Hex(got[at]), ", not ", Hex(wanted[at]));
  return false;
}

bool Run::Holds(const AnyBuf& src, absl::Span<const std::byte> wanted, const std::string& what) {
  return Same(Read(src, wanted.size()), wanted, what);
}

void Run::Transfer(const AnyBuf& dest, const AnyBuf& src, std::size_t nbytes) {
  RequireOk(record().transfer(dest, src, nbytes), absl::StrCat("transfer of ", nbytes, " bytes"));
}

void Run::Synchronize() {
  if (record().synchronize) RequireOk(record().synchronize(), "synchronize");
}

void Run::OnThreads(std::size_t count, const std::function<void(std::size_t)>& body) {
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < count; ++i) {
    threads.emplace_back([this, &body, i] {
      try {
        body(i);
      } catch (const Stop&) {  // noted
      } catch (const std::exception& e) {
        Fail("an exception left a call on another thread: ", e.what());
      } catch (...) {
        Fail("an exception left a call on another thread");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void Run::CleanUp() {
  for (Block& block : blocks_) {
    if (block.freed) continue;
    block.freed = true;
    try {
      (void)record().free(block.buf, block.nbytes, block.spec);
    } catch (...) {  // a broken backend; the clause has its violation
    }
  }
}

}  // namespace packalloc::testing
