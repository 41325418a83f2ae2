#include "packalloc/layers/traced.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "lib/fork_guard.h"
#include "lib/layers/buffer_map.h"
#include "lib/layers/stack_rules.h"
#include "lib/layers/trace_file.h"

namespace packalloc {
namespace {

constexpr absl::string_view kHeader = "Thread,Time,Action,Pointer,Size,Stream,Label";
constexpr std::size_t kMostTracedBytes = std::size_t{1} << 50;  // readers refuse more

// The labels of this thread that are open. It has no destructor: destructors of other thread-locals may still allocate.
constexpr std::size_t kMaxLabel = 1000;  // readers have a longest line
struct OpenLabels {
  char text[kMaxLabel];
  std::size_t size;
};
constinit thread_local OpenLabels open_labels{};

std::string Label() { return {open_labels.text, open_labels.size}; }

std::string TimeOfDay() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const auto second = static_cast<int>(now.tv_sec % 86400);
  char text[24];
  const int length = std::snprintf(text, sizeof text, "%02d:%02d:%02d.%06d", second / 3600, second / 60 % 60,
                                   second % 60, static_cast<int>(now.tv_nsec / 1000));
  return {text, static_cast<std::size_t>(length)};
}

struct TracedBuffer {
  std::uint64_t pointer = 0;
  std::string label;
};

class Tracer : public TracedControl, private ForkGuarded {
 public:
  Tracer(AnyRecord inner, std::unique_ptr<TraceFile> file) : inner_(std::move(inner)), file_(std::move(file)) {
    file_->Append(kHeader);
    file_->Flush().IgnoreError();
    BeginForkGuard(this, ForkRank::kCache);
  }
  ~Tracer() override { EndForkGuard(this); }

  absl::StatusOr<AnyBuf> Alloc(std::size_t nbytes, const BufferSpec& spec) {
    if (nbytes == 0 || spec.external_ptr.has_value()) return inner_.alloc(nbytes, spec);
    Failure failure{this, nbytes};
    absl::StatusOr<AnyBuf> buf = inner_.alloc(nbytes, spec);
    if (!buf.ok()) return buf;
    failure.tracer = nullptr;
    try {
      Allocated(*buf, nbytes);
    } catch (...) {  // NOLINT(bugprone-empty-catch): a trace without the line, rather than no allocation
    }
    return buf;
  }

  absl::Status Free(const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec) {
    if (nbytes == 0 || spec.external_ptr.has_value()) return inner_.free(buf, nbytes, spec);
    // Written before another thread can be given the memory and write that.
    Freeing freeing{this, Find(buf, nbytes)};
    if (freeing.entry != nullptr && !live_.Remove(freeing.entry)) freeing.entry = nullptr;
    if (freeing.entry != nullptr) Write("free", *freeing.entry, /*live=*/false);
    absl::Status freed = inner_.free(buf, nbytes, spec);
    if (freed.ok()) freeing.entry = nullptr;
    return freed;
  }

  absl::Status Flush() override {
    const std::lock_guard lock(mutex_);
    return file_->Flush();
  }

 private:
  using Map = BufferMap<TracedBuffer>;

  // An alloc that does not return a buffer, however it ends.
  struct Failure {
    ~Failure() {
      if (tracer != nullptr) tracer->WriteLine("allocate failure", 0, nbytes, Label());
    }
    Tracer* tracer;
    std::size_t nbytes;
  };
  // A free that does not succeed: the buffer is there again.
  struct Freeing {
    ~Freeing() {
      if (entry == nullptr) return;
      try {
        tracer->live_.Restore(entry);
        tracer->Write("allocate", *entry, /*live=*/true);
      } catch (...) {  // NOLINT(bugprone-empty-catch): as in Alloc
      }
    }
    Tracer* tracer;
    Map::Pointer entry;
  };

  Map::Pointer Find(const AnyBuf& buf, std::size_t nbytes) noexcept {
    try {
      const Map::Found found = live_.Find(buf.serial(), [&] { return inner_.addr(buf); });
      const bool whole = found && found.offset == 0 && !buf.is_view() && found.entry->nbytes == nbytes;
      return whole ? found.entry : nullptr;
    } catch (...) {
      return nullptr;
    }
  }

  void Allocated(AnyBuf& buf, std::size_t nbytes) {
    const DeviceAddress at = inner_.addr(buf);
    TracedBuffer buffer{at.value + at.byte_offset, Label()};
    {
      const std::lock_guard lock(mutex_);
      if (buffer.pointer == 0 || !pointers_.insert(buffer.pointer).second) buffer.pointer = next_pointer_++;
    }
    const Map::Pointer entry = live_.Add(buf, at, nbytes, std::move(buffer), /*overlaps=*/false);
    Write("allocate", *entry, /*live=*/true);
  }

  void Write(absl::string_view action, const Map::Entry& entry, bool live) noexcept {
    const TracedBuffer& buffer = entry.value;
    try {
      const std::lock_guard lock(mutex_);
      if (live) {
        pointers_.insert(buffer.pointer);
      } else {
        pointers_.erase(buffer.pointer);
      }
    } catch (...) {  // NOLINT(bugprone-empty-catch): as in Alloc
    }
    WriteLine(action, buffer.pointer, entry.nbytes, buffer.label);
  }

  void WriteLine(absl::string_view action, std::uint64_t pointer, std::size_t nbytes,
                 const std::string& label) noexcept {
    static thread_local const long thread = syscall(SYS_gettid);
    try {
      const std::lock_guard lock(mutex_);
      // The time is taken under the lock: lines stand in the order of their times.
      file_->Append(absl::StrCat(thread, ",", TimeOfDay(), ",", action, ",0x", absl::Hex(pointer), ",",
                                 std::min(nbytes, kMostTracedBytes), ",0,", label));
    } catch (...) {  // NOLINT(bugprone-empty-catch): as in Alloc
    }
  }

  void BeforeFork() override { mutex_.lock(); }
  void AfterFork(bool) override { mutex_.unlock(); }

  const AnyRecord inner_;
  Map live_;
  std::mutex mutex_;
  const std::unique_ptr<TraceFile> file_;
  absl::flat_hash_set<std::uint64_t> pointers_;                // live in the trace
  std::uint64_t next_pointer_ = (std::uint64_t{1} << 63) + 1;  // for buffers whose address is taken
};

}  // namespace

TraceLabel::TraceLabel(std::string_view name) : outer_size_(open_labels.size) {
  OpenLabels& labels = open_labels;
  const auto append = [&labels](char c) {
    const bool separates = c == ',' || c == '"' || (c >= 0 && c < ' ');
    if (labels.size < kMaxLabel) labels.text[labels.size++] = separates ? '_' : c;
  };
  if (labels.size != 0) append('/');
  for (const char c : name) append(c);
}

TraceLabel::~TraceLabel() { open_labels.size = outer_size_; }

absl::StatusOr<AnyRecord> TracedLayer(AnyRecord inner, const TracedOptions& options) {
  if (options.block_bytes == 0) return absl::InvalidArgumentError("Traced: block_bytes is 0");
  absl::StatusOr<std::unique_ptr<TraceFile>> file = TraceFile::Create(options.file, options.block_bytes);
  if (!file.ok()) return file.status();
  AnyRecord layered = inner;
  auto tracer = std::make_shared<Tracer>(std::move(inner), *std::move(file));
  layered.alloc = [tracer](std::size_t nbytes, const BufferSpec& spec) { return tracer->Alloc(nbytes, spec); };
  layered.free = [tracer](const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec) {
    return tracer->Free(buf, nbytes, spec);
  };
  layered.controls.Add<TracedControl>(std::move(tracer));
  MarkLayer(layered, "traced");
  return layered;
}

absl::StatusOr<PackedAllocator> Traced(const PackedAllocator& packed, const TracedOptions& options) {
  return ApplyLayer(packed, [&](AnyRecord inner) { return TracedLayer(std::move(inner), options); });
}

}  // namespace packalloc
