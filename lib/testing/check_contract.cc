#include "packalloc/testing/check_contract.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/testing/run.h"

namespace packalloc::testing {
namespace {

const ClauseList& AllClauses() {
  static const ClauseList& all = *new ClauseList([] {
    ClauseList list;
    for (const ClauseList* part :
         {&RecordClauses(), &AllocClauses(), &CopyClauses(), &AddressClauses(), &OffsetClauses(), &TransferClauses(),
          &DiskClauses(), &HostPtrClauses(), &SpecClauses(), &ThreadClauses(), &PackedClauses()}) {
      list.insert(list.end(), part->begin(), part->end());
    }
    return list;
  }());
  return all;
}

constexpr unsigned kHooks = kLiveBlocks | kDriverCalls | kThrowHook | kExhaustHook;

Skips SkipsFor(unsigned needs, const std::string& why) {
  Skips skips;
  for (const Clause& clause : AllClauses()) {
    if ((clause.needs & needs) != 0) skips[clause.name] = why;
  }
  return skips;
}

// Why `clause` cannot apply, or nullopt.
std::optional<std::string> Unmet(const Clause& clause, const Subject& subject, const ContractOptions& options) {
  const AnyRecord& record = subject.record;
  const auto unmet = [&](unsigned need, bool met) { return (clause.needs & need) != 0 && !met; };
  if (unmet(kOffset, record.supports_offset())) return "the record has no offset";
  if (unmet(kTransfer, record.supports_transfer())) return "the record has no transfer";
  if (unmet(kDisk, record.supports_copy_from_disk())) return "the record has no copy_from_disk";
  if (unmet(kHostPtr, static_cast<bool>(record.host_ptr))) return "the record has no host_ptr";
  if (unmet(kMemoryInfo, static_cast<bool>(record.memory_info))) return "the record has no memory_info";
  if (unmet(kLiveBlocks, static_cast<bool>(options.live_blocks))) return "the hook live_blocks is not set";
  if (unmet(kDriverCalls, static_cast<bool>(options.driver_calls))) return "the hook driver_calls is not set";
  if (unmet(kThrowHook, static_cast<bool>(options.throw_in_next_alloc))) {
    return "the hook throw_in_next_alloc is not set";
  }
  if (unmet(kExhaustHook, options.exhaust_in_next_alloc && options.stop_exhausting)) {
    return "the hooks exhaust_in_next_alloc and stop_exhausting are not set";
  }
  return std::nullopt;
}

bool LeftOut(const Clause& clause, const Subject& subject, const ContractOptions& options) {
  if ((clause.needs & kPacked) != 0 && !subject.packed) return true;
  return (clause.needs & kRanges) != 0 && !subject.packed && !options.checks_ranges;
}

// Runs one clause and adds its outcome to the report.
void RunClause(const Clause& clause, const SubjectFactory& factory, const ContractOptions& options,
               ContractReport& report) {
  const auto violate = [&](std::string what) { report.violations.push_back({clause.name, std::move(what)}); };
  const auto inapplicable = [&](const std::string& why) {
    violate(absl::StrCat("cannot be checked (", why, "); list it in ContractOptions::skips if that is right"));
  };
  const std::size_t before = report.violations.size();
  try {
    absl::StatusOr<Subject> subject = factory();
    if (!subject.ok()) return violate(absl::StrCat("the factory failed: ", subject.status().ToString()));
    if (LeftOut(clause, *subject, options)) return;
    if (std::optional<std::string> why = Unmet(clause, *subject, options)) return inapplicable(*why);
    Run run(clause, *std::move(subject), factory, options);
    try {
      clause.run(run);
    } catch (const Stop&) {  // its violation has been noted
    } catch (const NotApplicable& e) {
      inapplicable(e.why);
    } catch (const std::exception& e) {
      violate(absl::StrCat("an exception left the record: ", e.what()));
    } catch (...) {
      violate("an exception left the record");
    }
    run.CleanUp();
    for (std::string& what : run.TakeViolations()) violate(std::move(what));
  } catch (const std::exception& e) {
    violate(absl::StrCat("an exception left the factory: ", e.what()));
  }
  if (report.violations.size() == before) report.passed.emplace_back(clause.name);
}

}  // namespace

Skips WithoutHooks() { return SkipsFor(kHooks, "the suite has no hook into the device"); }

Skips WithoutMember(const std::string& member) {
  const unsigned need = member == "offset"           ? kOffset
                        : member == "transfer"       ? kTransfer
                        : member == "copy_from_disk" ? kDisk
                        : member == "host_ptr"       ? kHostPtr
                        : member == "memory_info"    ? kMemoryInfo
                                                     : kNothing;
  // As a skip that is no clause, the slip is a violation.
  if (need == kNothing) return {{absl::StrCat("WithoutMember(\"", member, "\")"), "no optional member of that name"}};
  return SkipsFor(need, absl::StrCat("the record has no ", member));
}

Skips WithoutBytes() { return SkipsFor(kBytes, "the backend moves no bytes"); }

bool ContractReport::Violates(const std::string& clause) const {
  return std::any_of(violations.begin(), violations.end(),
                     [&](const Violation& violation) { return violation.clause == clause; });
}

std::string ToString(const ContractReport& report) {
  std::string text = absl::StrCat(report.passed.size(), " clauses hold, ", report.skipped.size(), " are skipped, ",
                                  report.violations.size(), " violations\n");
  for (const Violation& violation : report.violations) {
    absl::StrAppend(&text, violation.clause, ": ", violation.what, "\n");
  }
  return text;
}

std::vector<std::pair<std::string, std::string>> Clauses() {
  std::vector<std::pair<std::string, std::string>> clauses;
  for (const Clause& clause : AllClauses()) clauses.emplace_back(clause.name, clause.what);
  return clauses;
}

absl::StatusOr<Subject> MakeSubject(absl::StatusOr<PackedAllocator> packed) {
  if (!packed.ok()) return packed.status();
  if (!*packed) return absl::InvalidArgumentError("the factory made an empty PackedAllocator");
  const PackedAllocator p = *packed;
  AnyRecord record;
  record.traits = p.traits();
  record.controls = p.controls();
  record.alloc = [p](std::size_t nbytes, const BufferSpec& spec) { return p.alloc(nbytes, spec); };
  record.free = [p](const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec) {
    return p.free(buf, nbytes, spec);
  };
  record.copyin = [p](const AnyBuf& dest, absl::Span<const std::byte> src) { return p.copyin(dest, src); };
  record.copyout = [p](absl::Span<std::byte> dest, const AnyBuf& src) { return p.copyout(dest, src); };
  record.addr = [p](const AnyBuf& buf) { return p.addr(buf).value_or(DeviceAddress{}); };
  if (p.supports_offset()) {
    record.offset = [p](const AnyBuf& buf, std::size_t nbytes, std::size_t byte_offset) {
      return p.offset(buf, nbytes, byte_offset);
    };
  }
  if (p.supports_transfer()) {
    record.transfer = [p](const AnyBuf& dest, const AnyBuf& src, std::size_t nbytes) {
      return p.transfer(dest, src, nbytes);
    };
  }
  if (p.supports_copy_from_disk()) {
    record.copy_from_disk = [p](const AnyBuf& dest, const DiskExtent& src, std::size_t nbytes) {
      return p.copy_from_disk(dest, src, nbytes);
    };
  }
  if (p.supports_host_ptr()) record.host_ptr = [p](const AnyBuf& buf) { return p.host_ptr(buf); };
  if (p.record().memory_info) record.memory_info = [p] { return p.memory_info(); };
  record.synchronize = [p] { return p.synchronize(); };
  return Subject{record, p, [record] { return record; }};
}

ContractReport CheckContractOf(const SubjectFactory& factory, const ContractOptions& options) {
  ContractReport report;
  for (const auto& [name, why] : options.skips) {
    const bool known = std::any_of(AllClauses().begin(), AllClauses().end(),
                                   [&name = name](const Clause& clause) { return clause.name == name; });
    if (!known) report.violations.push_back({name, "is listed as skipped, but there is no clause of that name"});
  }
  for (const Clause& clause : AllClauses()) {
    if (const auto skip = options.skips.find(clause.name); skip != options.skips.end()) {
      report.skipped.insert(*skip);
      continue;
    }
    const auto& only = options.only;
    if (!only.empty() && std::find(only.begin(), only.end(), clause.name) == only.end()) continue;
    RunClause(clause, factory, options, report);
    // Without its required members nothing else can be tried.
    if (report.Violates("record.required_members")) break;
  }
  return report;
}

}  // namespace packalloc::testing
