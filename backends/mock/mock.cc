#include "packalloc/backends/mock.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "backends/mock/mock_world.h"
#include "lib/checked_math.h"
#include "lib/checks.h"

namespace packalloc {
namespace {

struct Script {
  Member call;
  std::uint64_t countdown;  // calls until it acts
  bool every;               // it then stays, for each call
  std::function<absl::Status()> action;
};

class MockDevice final : public MockControl {
 public:
  explicit MockDevice(MockOptions options) : options_(std::move(options)) {
    log_ = options_.log ? options_.log : std::make_shared<MockLog>();
    const auto* peer = dynamic_cast<MockDevice*>(options_.transfers_with.get());
    world_ = peer != nullptr ? peer->world_ : std::make_shared<MockWorld>();
    const auto* sharer = dynamic_cast<MockDevice*>(options_.shares_memory_with.get());
    pool_ = sharer != nullptr ? sharer->pool_ : std::make_shared<MockPool>();
    if (sharer == nullptr) pool_->capacity = options_.capacity_bytes;
    options_.transfers_with.reset();
    options_.shares_memory_with.reset();
  }
  // What is still live gives its bytes back to a pool that other mocks share.
  ~MockDevice() override {
    const auto lock = world_->Hold();
    for (const MockBlockPtr& block : Mine()) {
      if (!block->spec.external_ptr) Release(block->nbytes);
      world_->Erase(block->id);
    }
  }

  const MockOptions& options() const { return options_; }
  std::uint32_t transfer_domain() const { return world_->domain(); }
  std::uint32_t memory_domain() const { return pool_->domain; }

  // ---- the record ----

  absl::StatusOr<MockBuf> Alloc(std::size_t nbytes, const BufferSpec& spec) {
    if (absl::Status valid = CheckRequest(options_.name, nbytes, spec); !valid.ok()) return valid;
    if (nbytes == 0) return MockBuf{};
    MockEntry entry{.call = Member::kAlloc, .nbytes = nbytes};
    absl::StatusOr<MockBuf> buf = MockBuf{};
    entry.status = Logged(entry, [&]() -> absl::Status {
      buf = AllocBlock(nbytes, spec);
      if (buf.ok()) entry.buf = *buf;
      return buf.status();
    });
    if (!entry.status.ok()) return entry.status;
    return buf;
  }

  absl::Status Free(const MockBuf& buf, std::size_t nbytes, const BufferSpec& spec) {
    if (buf == MockBuf{} && nbytes == 0) return absl::OkStatus();
    MockEntry entry{.call = Member::kFree, .buf = buf, .nbytes = nbytes};
    return Logged(entry, [&]() -> absl::Status {
      auto lock = world_->Hold();
      absl::StatusOr<MockBlockPtr> block = Resolve(buf, buf.nbytes, "free");
      if (!block.ok()) return block.status();
      if (buf.byte_offset != 0 || buf.nbytes != (*block)->nbytes) {
        return Misuse(absl::StrCat("free of a view of block ", Name(buf), "; free the buffer that it was made from"));
      }
      if (nbytes != (*block)->nbytes || spec != (*block)->spec) {
        return Misuse(absl::StrCat("free of block ", Name(buf), " with ", nbytes, " bytes and ", ToString(spec),
                                   ", but it was allocated with ", (*block)->nbytes, " and ",
                                   ToString((*block)->spec)));
      }
      world_->Erase(buf.block);
      absl::Status done;
      if (spec.external_ptr) {
        done = world_->Demand(lock, [&](const MockOperation& o) { return o.Touches(block->get()); });
      } else {
        Release(nbytes);
      }
      return done;
    });
  }

  absl::Status Copyin(const MockBuf& dest, absl::Span<const std::byte> src) {
    if (src.empty()) return absl::OkStatus();
    MockEntry entry{.call = Member::kCopyin, .buf = dest, .nbytes = src.size()};
    return Logged(entry, [&] { return Write(dest, {src.begin(), src.end()}, "copyin"); });
  }

  absl::Status Copyout(absl::Span<std::byte> dest, const MockBuf& src) {
    if (dest.empty()) return absl::OkStatus();
    MockEntry entry{.call = Member::kCopyout, .buf = src, .nbytes = dest.size()};
    return Logged(entry, [&]() -> absl::Status {
      auto lock = world_->Hold();
      absl::StatusOr<MockBlockPtr> block = Resolve(src, dest.size(), "copyout");
      if (!block.ok()) return block.status();
      absl::Status done = world_->Demand(lock, [&](const MockOperation& o) { return o.Touches(block->get()); });
      if (!done.ok()) return done;
      absl::StatusOr<std::byte*> from = (*block)->memory.Touch(src.byte_offset, dest.size());
      if (!from.ok()) return from.status();
      std::memcpy(dest.data(), *from, dest.size());
      return absl::OkStatus();
    });
  }

  DeviceAddress Addr(const MockBuf& buf) {
    if (buf.block == 0) return {};
    DeviceAddress address;
    MockEntry entry{.call = Member::kAddr, .buf = buf};
    const absl::Status status = Logged(entry, [&]() -> absl::Status {
      const auto lock = world_->Hold();
      absl::StatusOr<MockBlockPtr> block = Resolve(buf, 0, "addr");
      if (!block.ok()) return block.status();
      address = options_.address_is_pointer ? DeviceAddress{(*block)->address + buf.byte_offset, 0}
                                            : DeviceAddress{(*block)->address, buf.byte_offset};
      return absl::OkStatus();
    });
    return status.ok() ? address : DeviceAddress{};
  }

  absl::StatusOr<MockBuf> Offset(const MockBuf& buf, std::size_t nbytes, std::size_t byte_offset) {
    if (absl::Status fits = CheckView(options_.name, nbytes, byte_offset, buf.nbytes); !fits.ok()) return fits;
    if (nbytes == 0) return MockBuf{};
    const MockBuf view{buf.block, buf.byte_offset + byte_offset, nbytes};
    MockEntry entry{.call = Member::kOffset, .buf = view, .source = buf, .nbytes = nbytes};
    const absl::Status status = Logged(entry, [&]() -> absl::Status {
      const auto lock = world_->Hold();
      return Resolve(buf, 0, "offset").status();
    });
    if (!status.ok()) return status;
    return view;
  }

  absl::Status Transfer(const MockBuf& dest, const MockBuf& src, std::size_t nbytes) {
    if (nbytes == 0) return absl::OkStatus();
    MockEntry entry{.call = Member::kTransfer, .buf = dest, .source = src, .nbytes = nbytes};
    return Logged(entry, [&]() -> absl::Status {
      auto lock = world_->Hold();
      absl::StatusOr<MockBlockPtr> to = Resolve(dest, nbytes, "transfer", /*any_device=*/true);
      if (!to.ok()) return to.status();
      absl::StatusOr<MockBlockPtr> from = Resolve(src, nbytes, "transfer", /*any_device=*/true);
      if (!from.ok()) return from.status();
      return Issue(lock, {.dest = *to,
                          .dest_offset = dest.byte_offset,
                          .source = *from,
                          .source_offset = src.byte_offset,
                          .nbytes = nbytes});
    });
  }

  absl::Status CopyFromDisk(const MockBuf& dest, const DiskExtent& src, std::size_t nbytes) {
    if (nbytes > src.nbytes) {
      return absl::OutOfRangeError(
          absl::StrCat("copy_from_disk of ", nbytes, " bytes, but the extent has ", src.nbytes));
    }
    if (nbytes == 0) return absl::OkStatus();
    MockEntry entry{.call = Member::kCopyFromDisk, .buf = dest, .nbytes = nbytes};
    return Logged(entry, [&]() -> absl::Status {
      {
        const auto lock = world_->Hold();
        if (absl::Status found = Resolve(dest, nbytes, "copy_from_disk").status(); !found.ok()) return found;
      }
      std::vector<std::byte> staged(nbytes);
      if (absl::Status read = options_.read_extent(absl::MakeSpan(staged), src); !read.ok()) return read;
      return Write(dest, std::move(staged), "copy_from_disk");
    });
  }

  absl::StatusOr<std::byte*> HostPtr(const MockBuf& buf) {
    if (buf.block == 0) return nullptr;
    std::byte* at = nullptr;
    MockEntry entry{.call = Member::kHostPtr, .buf = buf};
    const absl::Status status = Logged(entry, [&]() -> absl::Status {
      const auto lock = world_->Hold();
      absl::StatusOr<MockBlockPtr> block = Resolve(buf, 0, "host_ptr");
      if (!block.ok()) return block.status();
      if (!(*block)->host_accessible) {
        return absl::FailedPreconditionError(absl::StrCat("block ", Name(buf), " is not host memory; allocate it with ",
                                                          "spec.host or spec.cpu_access"));
      }
      absl::StatusOr<std::byte*> bytes = (*block)->memory.Touch(buf.byte_offset, buf.nbytes);
      if (bytes.ok()) at = *bytes;
      return bytes.status();
    });
    if (!status.ok()) return status;
    return at;
  }

  absl::StatusOr<MemoryInfo> Memory() {
    MemoryInfo info;
    MockEntry entry{.call = Member::kMemoryInfo};
    const absl::Status status = Logged(entry, [&] {
      const std::lock_guard lock(pool_->mutex);
      info = {pool_->capacity - std::min(pool_->live, pool_->capacity), pool_->capacity};
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    return info;
  }

  absl::Status Synchronize() {
    MockEntry entry{.call = Member::kSynchronize};
    return Logged(entry, [&] {
      auto lock = world_->Hold();
      return world_->Demand(lock, [this](const MockOperation& o) { return o.device == this; });
    });
  }

  // ---- MockControl ----

  MockLog& log() override { return *log_; }

  void FailNth(Member call, std::uint64_t nth, absl::Status status) override {
    AddScript({call, std::max<std::uint64_t>(nth, 1), false, [status = std::move(status)] { return status; }});
  }
  void ThrowNth(Member call, std::uint64_t nth, std::exception_ptr exception) override {
    AddScript({call, std::max<std::uint64_t>(nth, 1), false, Throwing(std::move(exception))});
  }  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks): std::function frees it
  void FailAll(Member call, absl::Status status) override {
    AddScript({call, 0, true, [status = std::move(status)] { return status; }});
  }
  void ThrowAll(Member call, std::exception_ptr exception) override {
    AddScript({call, 0, true, Throwing(std::move(exception))});
  }  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks): std::function frees it
  void OnCall(Member call, std::function<absl::Status()> hook) override { AddScript({call, 0, true, std::move(hook)}); }
  void ClearFailures() override {
    const std::lock_guard lock(mutex_);
    scripts_.clear();
  }

  std::vector<Live> live() const override {
    const auto lock = world_->Hold();
    std::vector<Live> live;
    for (const MockBlockPtr& block : Mine()) live.push_back({MockBuf{block->id, 0, block->nbytes}, block->spec});
    return live;
  }
  std::size_t live_blocks() const override {
    const auto lock = world_->Hold();
    return Mine().size();
  }
  std::size_t live_bytes() const override {
    const std::lock_guard lock(mutex_);
    return live_bytes_;
  }
  std::size_t peak_live_bytes() const override {
    const std::lock_guard lock(mutex_);
    return peak_live_bytes_;
  }
  std::vector<std::string> misuses() const override {
    const std::lock_guard lock(mutex_);
    return misuses_;
  }
  std::size_t pending() const override {
    const auto lock = world_->Hold();
    return world_->Pending(this);
  }

  absl::Status Launch(std::string name, std::vector<MockBuf> touches, std::function<void()> work) override {
    MockOperation operation{.work = std::move(work)};
    auto lock = world_->Hold();
    for (const MockBuf& buf : touches) {
      absl::StatusOr<MockBlockPtr> block = Resolve(buf, 0, "Launch", /*any_device=*/true);
      if (!block.ok()) return block.status();
      operation.touches.push_back(*std::move(block));
    }
    if (options_.log_calls) log_->Add(std::move(name));
    return Issue(lock, std::move(operation));
  }

  absl::StatusOr<absl::Span<std::byte>> Bytes(const MockBuf& buf) override {
    if (buf.nbytes == 0) return absl::Span<std::byte>();
    const auto lock = world_->Hold();
    absl::StatusOr<MockBlockPtr> block = Resolve(buf, 0, "Bytes", /*any_device=*/true);
    if (!block.ok()) return block.status();
    absl::StatusOr<std::byte*> at = (*block)->memory.Touch(buf.byte_offset, buf.nbytes);
    if (!at.ok()) return at.status();
    return absl::MakeSpan(*at, buf.nbytes);
  }

 private:
  static std::string Name(const MockBuf& buf) { return absl::StrCat("#", static_cast<std::uint32_t>(buf.block)); }
  static std::function<absl::Status()> Throwing(std::exception_ptr exception) {
    return [exception = std::move(exception)]() -> absl::Status { std::rethrow_exception(exception); };
  }

  void AddScript(Script script) {
    const std::lock_guard lock(mutex_);
    scripts_.push_back(std::move(script));
  }

  // Runs the scripts that are due, then `work`, and logs the answer.
  template <typename Work>
  absl::Status Logged(MockEntry& entry, Work&& work) {
    struct Log {
      MockDevice& device;
      MockEntry& entry;
      ~Log() {
        if (!device.options_.log_calls) return;
        entry.device = device.options_.name;
        device.log_->Add(entry);
      }
    } log{*this, entry};
    entry.status = absl::UnknownError("an exception left the call");
    absl::Status status = RunScripts(*entry.call);
    if (status.ok()) status = std::forward<Work>(work)();
    entry.status = status;
    return status;
  }

  absl::Status RunScripts(Member call) {
    std::vector<std::function<absl::Status()>> due;
    {
      const std::lock_guard lock(mutex_);
      std::erase_if(scripts_, [&](Script& script) {
        if (script.call != call) return false;
        if (!script.every && --script.countdown != 0) return false;
        due.push_back(script.action);
        return !script.every;
      });
    }
    for (const auto& action : due) {
      if (absl::Status status = action(); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // The members below want the world's lock held where they reach into it.

  std::vector<MockBlockPtr> Mine() const {
    std::vector<MockBlockPtr> mine;
    for (const auto& [id, block] : world_->blocks()) {
      if (block->device == this) mine.push_back(block);
    }
    return mine;
  }

  absl::Status Misuse(const std::string& what) const {
    const std::lock_guard lock(mutex_);
    misuses_.push_back(what);
    return absl::InvalidArgumentError(what);
  }

  // The live block behind `buf`, of this mock or of `any_device` of its domain, with `nbytes` inside the handle.
  absl::StatusOr<MockBlockPtr> Resolve(const MockBuf& buf, std::size_t nbytes, const char* operation,
                                       bool any_device = false) const {
    const MockBlockPtr block = world_->Find(buf.block);
    if (block == nullptr || (block->device != this && !any_device)) {
      return Misuse(world_->WasFreed(buf.block)
                        ? absl::StrCat(operation, ": block ", Name(buf), " of ", options_.name, " was freed before")
                        : absl::StrCat(operation, ": block ", Name(buf), " is not of ", options_.name));
    }
    if (!InRange(buf.byte_offset, buf.nbytes, block->nbytes)) {
      return Misuse(absl::StrCat(operation, ": the handle of block ", Name(buf), " reaches beyond its ", block->nbytes,
                                 " bytes"));
    }
    if (absl::Status fits = CheckCopy(operation, nbytes, buf.nbytes); !fits.ok()) return fits;
    return block;
  }

  absl::StatusOr<MockBuf> AllocBlock(std::size_t nbytes, const BufferSpec& spec) {
    if (!spec.external_ptr && nbytes > options_.max_alloc_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat("alloc of ", nbytes, " bytes: the largest single allocation of ",
                                                       options_.name, " is ", options_.max_alloc_bytes, " bytes"));
    }
    const std::size_t alignment = std::max(options_.min_alignment, spec.alignment);
    const auto lock = world_->Hold();
    absl::StatusOr<std::uintptr_t> address =
        spec.external_ptr ? *spec.external_ptr : world_->NewAddress(nbytes, alignment);
    if (!address.ok()) return address.status();
    if (!spec.external_ptr) {
      if (absl::Status taken = Take(nbytes); !taken.ok()) return taken;
    }
    const std::uint64_t id = world_->NewBlockId();
    const bool host = options_.host_accessible || spec.host || spec.cpu_access || spec.external_ptr;
    const std::byte fill = spec.zero ? std::byte{0} : options_.poison;
    // NOLINTBEGIN(modernize-make-shared): the memory is made in place
    world_->Insert(spec.external_ptr ? std::shared_ptr<MockBlock>(new MockBlock{
                                           id, nbytes, spec, this, *address, host,
                                           MockMemory(reinterpret_cast<std::byte*>(*spec.external_ptr), nbytes)})
                                     : std::shared_ptr<MockBlock>(new MockBlock{id, nbytes, spec, this, *address, host,
                                                                                MockMemory(nbytes, alignment, fill)}));
    // NOLINTEND(modernize-make-shared)
    return MockBuf{id, 0, nbytes};
  }

  absl::Status Take(std::size_t nbytes) {
    {
      const std::lock_guard lock(pool_->mutex);
      if (nbytes > pool_->capacity - pool_->live) {
        return absl::ResourceExhaustedError(absl::StrCat("alloc of ", nbytes, " bytes on ", options_.name, ": ",
                                                         pool_->live, " of ", pool_->capacity, " bytes are in use"));
      }
      pool_->live += nbytes;
    }
    const std::lock_guard lock(mutex_);
    live_bytes_ += nbytes;
    peak_live_bytes_ = std::max(peak_live_bytes_, live_bytes_);
    return absl::OkStatus();
  }

  void Release(std::size_t nbytes) {
    {
      const std::lock_guard lock(pool_->mutex);
      pool_->live -= nbytes;
    }
    const std::lock_guard lock(mutex_);
    live_bytes_ -= nbytes;
  }

  absl::Status Write(const MockBuf& dest, std::vector<std::byte> staged, const char* operation) {
    auto lock = world_->Hold();
    absl::StatusOr<MockBlockPtr> block = Resolve(dest, staged.size(), operation);
    if (!block.ok()) return block.status();
    const std::size_t nbytes = staged.size();
    return Issue(lock,
                 {.dest = *block, .dest_offset = dest.byte_offset, .nbytes = nbytes, .staged = std::move(staged)});
  }

  absl::Status Issue(MockWorld::Lock& lock, MockOperation operation) {
    operation.device = this;
    world_->Issue(std::move(operation));
    if (options_.lazy) return absl::OkStatus();
    return world_->Demand(lock, [this](const MockOperation& o) { return o.device == this; });
  }

  MockOptions options_;
  std::shared_ptr<MockLog> log_;
  std::shared_ptr<MockWorld> world_;
  std::shared_ptr<MockPool> pool_;
  mutable std::mutex mutex_;
  std::vector<Script> scripts_;
  mutable std::vector<std::string> misuses_;
  std::size_t live_bytes_ = 0;
  std::size_t peak_live_bytes_ = 0;
};

bool Contains(const std::vector<Member>& calls, Member call) {
  return std::find(calls.begin(), calls.end(), call) != calls.end();
}

}  // namespace

Allocator<MockBuf> MockAllocator(MockOptions options) {
  auto device = std::make_shared<MockDevice>(std::move(options));
  const MockOptions& o = device->options();
  Allocator<MockBuf> record;
  record.traits.name = o.name;
  record.traits.min_alignment = o.min_alignment;
  record.traits.max_alloc_bytes = o.max_alloc_bytes;
  record.traits.address_is_pointer = o.address_is_pointer;
  record.traits.transfer_domain = device->transfer_domain();
  record.traits.memory_domain = device->memory_domain();
  record.controls.Add<MockControl>(device);
  record.alloc = [device](std::size_t nbytes, const BufferSpec& spec) { return device->Alloc(nbytes, spec); };
  record.free = [device](const MockBuf& buf, std::size_t nbytes, const BufferSpec& spec) {
    return device->Free(buf, nbytes, spec);
  };
  record.copyin = [device](const MockBuf& dest, absl::Span<const std::byte> src) { return device->Copyin(dest, src); };
  record.copyout = [device](absl::Span<std::byte> dest, const MockBuf& src) { return device->Copyout(dest, src); };
  record.addr = [device](const MockBuf& buf) { return device->Addr(buf); };
  if (!Contains(o.absent, Member::kOffset)) {
    record.offset = [device](const MockBuf& buf, std::size_t nbytes, std::size_t byte_offset) {
      return device->Offset(buf, nbytes, byte_offset);
    };
  }
  if (!Contains(o.absent, Member::kTransfer)) {
    record.transfer = [device](const MockBuf& dest, const MockBuf& src, std::size_t nbytes) {
      return device->Transfer(dest, src, nbytes);
    };
  }
  if (o.read_extent) {
    record.copy_from_disk = [device](const MockBuf& dest, const DiskExtent& src, std::size_t nbytes) {
      return device->CopyFromDisk(dest, src, nbytes);
    };
  }
  if (!Contains(o.absent, Member::kHostPtr)) {
    record.host_ptr = [device](const MockBuf& buf) { return device->HostPtr(buf); };
  }
  if (!Contains(o.absent, Member::kMemoryInfo)) record.memory_info = [device] { return device->Memory(); };
  if (!Contains(o.absent, Member::kSynchronize)) record.synchronize = [device] { return device->Synchronize(); };
  return record;
}

}  // namespace packalloc
