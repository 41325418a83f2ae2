// Clauses on threads, and on the box around a record.
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>

#include "lib/testing/run.h"

namespace packalloc::testing {
namespace {

constexpr std::size_t kThreads = 4;

void AnyMember(Run& run) {
  run.OnThreads(kThreads, [&](std::size_t t) {
    for (std::uint32_t i = 0; i < 50; ++i) {
      const std::uint32_t seed = static_cast<std::uint32_t>(t) * 1000 + i;
      const std::size_t n = 512 + (i % 4) * 1000;
      Block& a = run.Alloc(n);
      run.Fill(a.buf, n, seed);
      (void)run.record().addr(a.buf);
      if (run.record().transfer) {
        Block& b = run.Alloc(n);
        run.Transfer(b.buf, a.buf, n);
        run.Holds(b.buf, n, seed, "a transfer on one of several threads");
        run.Free(b);
      }
      if (run.record().offset) {
        const Bytes bytes = Pattern(seed, n);
        run.Holds(run.View(a.buf, 100, 77), absl::MakeConstSpan(bytes).subspan(77, 100), "a view on a thread");
      }
      if (run.record().host_ptr) (void)run.record().host_ptr(a.buf);
      if (run.record().memory_info) run.ExpectOk(run.record().memory_info().status(), "memory_info on a thread");
      if (i % 8 == 0) run.Synchronize();
      run.Holds(a.buf, n, seed, "a buffer on one of several threads");
      run.Free(a);
    }
  });
}

// Four threads that live at the same time: one allocates, one fills, one reads, one frees.
void HandOver(Run& run) {
  for (int round = 0; round < 8; ++round) {
    std::mutex mutex;
    std::condition_variable changed;
    std::size_t turn = 0;
    Block* block = nullptr;
    run.OnThreads(4, [&](std::size_t t) {
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return turn == t; });
      }
      struct PassOn {
        std::mutex& mutex;
        std::condition_variable& changed;
        std::size_t& turn;
        ~PassOn() {
          const std::lock_guard lock(mutex);
          ++turn;
          changed.notify_all();
        }
      } pass_on{mutex, changed, turn};
      if (t == 0) {
        block = &run.Alloc(10000);
        return;
      }
      if (block == nullptr) return;
      if (t == 1) run.Fill(block->buf, 10000, 1);
      if (t == 2) run.Holds(block->buf, 10000, 1, "a buffer filled on another thread");
      if (t == 3) run.Free(*block);
    });
  }
}

void RecordCopies(Run& run) {
  run.OnThreads(kThreads, [&](std::size_t t) {
    for (int i = 0; i < 20; ++i) {
      const AnyRecord copy = run.Copy();
      absl::StatusOr<AnyBuf> buf = copy.alloc(1000, {});
      run.RequireOk(buf.status(), "alloc by a copy of the record on a thread");
      Block& block = run.Keep(*std::move(buf), 1000);
      run.Fill(block.buf, 1000, static_cast<std::uint32_t>(t));
      run.Holds(block.buf, 1000, static_cast<std::uint32_t>(t), "a buffer of a copy of the record");
      run.Free(block);
    }
  });
}

// ---- packed ----

void FreeWrongSize(Run& run) {
  Block& block = run.Alloc(4096);
  for (const std::size_t n : {0u, 4095u, 4097u, 8192u}) {
    run.ExpectCode(run.packed().free(block.buf, n), absl::StatusCode::kInvalidArgument,
                   absl::StrCat("free with ", n, " bytes of a buffer of 4096"));
  }
  run.Fill(block.buf, 4096, 1);
  run.Holds(block.buf, 4096, 1, "a buffer after frees with a wrong size");
  run.Free(block);
}

void ForeignBuffer(Run& run) {
  Subject other = run.Another();
  run.Require(static_cast<bool>(other.packed), "the factory made a raw record where it made a packed one before");
  run.Expect(other.packed != run.packed() && other.packed.id() != run.packed().id(),
             "the factory made the same allocator twice, where the suite needs a fresh one");
  absl::StatusOr<AnyBuf> buf = other.packed.alloc(100);
  run.RequireOk(buf.status(), "alloc of 100 bytes");
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  Bytes bytes(10);
  const PackedAllocator& p = run.packed();
  run.ExpectCode(p.free(*buf, 100), kInvalid, "free of another allocator's buffer");
  run.ExpectCode(p.copyin(*buf, bytes), kInvalid, "copyin to another allocator's buffer");
  run.ExpectCode(p.copyout(absl::MakeSpan(bytes), *buf), kInvalid, "copyout from another allocator's buffer");
  run.ExpectCode(p.addr(*buf).status(), kInvalid, "addr of another allocator's buffer");
  run.ExpectCode(p.offset(*buf, 1, 0).status(), kInvalid, "a view of another allocator's buffer");
  run.ExpectOk(other.packed.free(*buf, 100), "free by the allocator that it came from");
}

void EmptyHandle(Run& run) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  Bytes bytes(1);
  const PackedAllocator& p = run.packed();
  run.ExpectCode(p.free(AnyBuf(), 0), kInvalid, "free of an empty handle");
  run.ExpectCode(p.copyin(AnyBuf(), bytes), kInvalid, "copyin to an empty handle");
  run.ExpectCode(p.copyout(absl::MakeSpan(bytes), AnyBuf()), kInvalid, "copyout from an empty handle");
}

void ViewIsNotFreed(Run& run) {
  Block& block = run.Alloc(100);
  const AnyBuf view = run.View(block.buf, 100, 0);
  run.ExpectCode(run.packed().free(view, 100), absl::StatusCode::kInvalidArgument, "free of a view");
  run.Fill(block.buf, 100, 1);
  run.Holds(block.buf, 100, 1, "the base after a free of its view");
}

// An optional member that the record lacks is UNIMPLEMENTED, never a call of an empty function.
void AbsentMembers(Run& run) {
  const PackedAllocator& p = run.packed();
  Block& a = run.Alloc(100);
  constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
  const auto check = [&](bool supported, const absl::Status& status, const char* member) {
    run.Expect(supported == (status.code() != kUnimplemented), member, " and supports_", member,
               " disagree: ", status.ToString());
  };
  check(p.supports_offset(), p.offset(a.buf, 10, 0).status(), "offset");
  check(p.supports_transfer(), p.transfer(a.buf, a.buf, 100), "transfer");
  check(p.supports_host_ptr(), p.host_ptr(a.buf).status(), "host_ptr");
  run.ExpectOk(p.synchronize(), "synchronize");
}

}  // namespace

const ClauseList& ThreadClauses() {
  static const ClauseList& list = *new ClauseList{
      {"threads.any_member", "every member works on several threads at once", kBytes, AnyMember},
      {"threads.hand_over", "a buffer moves from thread to thread", kBytes, HandOver},
      {"threads.record_copies", "records are copied and dropped on several threads", kBytes, RecordCopies},
  };
  return list;
}

const ClauseList& PackedClauses() {
  static const ClauseList& list = *new ClauseList{
      {"packed.free_wrong_size", "free with another size is INVALID_ARGUMENT", kBytes | kPacked, FreeWrongSize},
      {"packed.foreign_buffer", "another allocator's buffer is INVALID_ARGUMENT", kPacked, ForeignBuffer},
      {"packed.empty_handle", "an empty handle is INVALID_ARGUMENT", kPacked, EmptyHandle},
      {"packed.view_is_not_freed", "free of a view is INVALID_ARGUMENT", kBytes | kPacked | kOffset, ViewIsNotFreed},
      {"packed.absent_members", "a member that is not there is UNIMPLEMENTED", kPacked, AbsentMembers},
  };
  return list;
}

}  // namespace packalloc::testing
