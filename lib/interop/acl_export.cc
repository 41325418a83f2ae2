#include "packalloc/interop/acl_export.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "lib/interop/acl_functions.h"
#include "lib/interop/acl_object.h"
#include "lib/phase.h"

namespace packalloc {
namespace internal {

struct AclRegistrationState {
  AclRegistrationState(const AclFunctions& functions, void* its_stream, std::shared_ptr<AclObject> its_object)
      : acl(functions), stream(its_stream), object(std::move(its_object)) {
    Phase::Change(phase, Phase::kEmpty).Finish(Phase::kReady);
  }

  const AclFunctions acl;
  void* const stream;
  const std::shared_ptr<AclObject> object;
  Phase phase{};          // ready: not ended yet
  bool on_stream = true;  // of who has claimed the phase
};

}  // namespace internal

namespace {

using internal::AclObject;
using internal::AclRegistrationState;
using internal::AclStatus;

absl::Status CheckFunctions(const AclFunctions& acl) {
  std::vector<std::string> missing;
#define PACKALLOC_ACL_NEEDS(name) \
  if (acl.name == nullptr) missing.emplace_back(#name)
  PACKALLOC_ACL_NEEDS(aclrtAllocatorCreateDesc);
  PACKALLOC_ACL_NEEDS(aclrtAllocatorDestroyDesc);
  PACKALLOC_ACL_NEEDS(aclrtAllocatorSetObjToDesc);
  PACKALLOC_ACL_NEEDS(aclrtAllocatorSetAllocFuncToDesc);
  PACKALLOC_ACL_NEEDS(aclrtAllocatorSetAllocAdviseFuncToDesc);
  PACKALLOC_ACL_NEEDS(aclrtAllocatorSetFreeFuncToDesc);
  PACKALLOC_ACL_NEEDS(aclrtAllocatorSetGetAddrFromBlockFuncToDesc);
  PACKALLOC_ACL_NEEDS(aclrtAllocatorRegister);
  PACKALLOC_ACL_NEEDS(aclrtAllocatorUnregister);
  PACKALLOC_ACL_NEEDS(aclrtSynchronizeStream);
#undef PACKALLOC_ACL_NEEDS
  return internal::MissingAclFunctions(acl, missing);
}

// The whole descriptor is set, the advice too: CANN hangs in its own lock where that is missing.
absl::Status FillDesc(const AclFunctions& acl, void* desc, const AclCallbacks& callbacks) {
  const std::pair<int, const char*> answers[] = {
      {acl.aclrtAllocatorSetObjToDesc(desc, callbacks.object), "aclrtAllocatorSetObjToDesc"},
      {acl.aclrtAllocatorSetAllocFuncToDesc(desc, callbacks.alloc), "aclrtAllocatorSetAllocFuncToDesc"},
      {acl.aclrtAllocatorSetAllocAdviseFuncToDesc(desc, callbacks.alloc_advise),
       "aclrtAllocatorSetAllocAdviseFuncToDesc"},
      {acl.aclrtAllocatorSetFreeFuncToDesc(desc, callbacks.free), "aclrtAllocatorSetFreeFuncToDesc"},
      {acl.aclrtAllocatorSetGetAddrFromBlockFuncToDesc(desc, callbacks.get_addr_from_block),
       "aclrtAllocatorSetGetAddrFromBlockFuncToDesc"}};
  for (const auto& [code, call] : answers) {
    if (absl::Status set = AclStatus(acl, code, call); !set.ok()) return set;
  }
  return absl::OkStatus();
}

absl::Status Register(const AclFunctions& acl, void* stream, const AclCallbacks& callbacks) {
  void* desc = acl.aclrtAllocatorCreateDesc();
  if (desc == nullptr) return absl::ResourceExhaustedError("aclrtAllocatorCreateDesc answered null");
  absl::Status status = FillDesc(acl, desc, callbacks);
  if (status.ok()) status = AclStatus(acl, acl.aclrtAllocatorRegister(stream, desc), "aclrtAllocatorRegister");
  acl.aclrtAllocatorDestroyDesc(desc);  // registering has copied it; what is lost where this fails is a few bytes
  return status;
}

// Whether another allocator was registered with the stream since: that one is not ours to take off.
bool IsReplaced(const AclFunctions& acl, void* stream, const void* object) {
  if (acl.aclrtAllocatorGetByStream == nullptr) return false;
  AclCallbacks now;
  void* desc = nullptr;
  const int code = acl.aclrtAllocatorGetByStream(stream, &desc, &now.object, &now.alloc, &now.free, &now.alloc_advise,
                                                 &now.get_addr_from_block);
  return code == internal::kAclSuccess && now.object != object;
}

absl::Status Synchronize(const AclRegistrationState& state) {
  return AclStatus(state.acl, state.acl.aclrtSynchronizeStream(state.stream), "aclrtSynchronizeStream");
}

absl::Status TakeOff(AclRegistrationState& state) {
  if (state.on_stream && !IsReplaced(state.acl, state.stream, state.object->callbacks().object)) {
    absl::Status off =
        AclStatus(state.acl, state.acl.aclrtAllocatorUnregister(state.stream), "aclrtAllocatorUnregister");
    if (!off.ok()) return off;
  }
  state.on_stream = false;
  state.object->Stop();
  return Synchronize(state);
}

absl::Status Empty() { return absl::FailedPreconditionError("the AclRegistration is empty: it was moved from"); }

}  // namespace

absl::StatusOr<AclRegistration> ExportAclAllocator(const PackedAllocator& packed, const AclExportOptions& options) {
  if (options.stream == nullptr) {
    return absl::InvalidArgumentError("the aclrtStream is null; an allocator is registered with a stream of its own");
  }
  absl::StatusOr<AclFunctions> acl =
      options.functions ? absl::StatusOr<AclFunctions>(*options.functions) : LoadAclFunctions(options.library);
  if (!acl.ok()) return acl.status();
  if (absl::Status complete = CheckFunctions(*acl); !complete.ok()) return complete;

  AclObject::Options object_options{
      .spec = options.spec, .max_kept_bytes = options.max_kept_bytes, .free_at_once = options.free_at_once};
  if (acl->aclrtStreamQuery != nullptr) {
    object_options.idle = [query = acl->aclrtStreamQuery, stream = options.stream] {
      int status = -1;
      return query(stream, &status) == internal::kAclSuccess && status == 0;
    };
  }
  absl::StatusOr<std::shared_ptr<AclObject>> object = AclObject::Make(packed, std::move(object_options));
  if (!object.ok()) return object.status();
  struct EndUnlessRegistered {
    AclObject* object;
    ~EndUnlessRegistered() {
      if (object != nullptr) object->End().IgnoreError();
    }
  } undo{object->get()};
  auto state = std::make_unique<AclRegistrationState>(*acl, options.stream, *object);
  if (absl::Status done = Register(*acl, options.stream, (*object)->callbacks()); !done.ok()) return done;
  undo.object = nullptr;
  return AclRegistration(std::move(state));
}

AclRegistration::AclRegistration(std::unique_ptr<AclRegistrationState> state) : state_(std::move(state)) {}

AclRegistration::AclRegistration(AclRegistration&&) noexcept = default;

AclRegistration& AclRegistration::operator=(AclRegistration&& other) noexcept {
  if (this != &other) {
    const AclRegistration ended(std::move(*this));
    state_ = std::move(other.state_);
  }
  return *this;
}

AclRegistration::~AclRegistration() {
  if (state_ == nullptr) return;
  try {
    Unregister().IgnoreError();
    if (!state_->phase.ready()) return;
    // The runtime has refused. What nobody uses ends all the same.
    state_->object->EndIfUnused();
  } catch (...) {  // NOLINT(bugprone-empty-catch): a destructor has no one to tell
  }
}

absl::Status AclRegistration::Unregister() {
  if (state_ == nullptr) return Empty();
  Phase::Change change(state_->phase, Phase::kReady);
  if (change.nested()) return absl::FailedPreconditionError("Unregister was called by what Unregister calls");
  if (change.claimed()) {
    if (absl::Status off = TakeOff(*state_); !off.ok()) return off;
    change.Finish(Phase::kEmpty);
  }
  return state_->object->End();
}

absl::Status AclRegistration::Trim() {
  if (state_ == nullptr) return Empty();
  return state_->object->GiveBack([this] { return Synchronize(*state_); });
}

AclExportStats AclRegistration::stats() const { return state_ == nullptr ? AclExportStats() : state_->object->stats(); }

absl::Status AclRegistration::last_error() const {
  return state_ == nullptr ? absl::OkStatus() : state_->object->last_error();
}

AclCallbacks AclRegistration::callbacks() const {
  return state_ == nullptr ? AclCallbacks() : state_->object->callbacks();
}

void* AclRegistration::stream() const { return state_ == nullptr ? nullptr : state_->stream; }

}  // namespace packalloc
