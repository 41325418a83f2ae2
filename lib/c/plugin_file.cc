#include "lib/c/plugin_file.h"

#include <elf.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "lib/checked_math.h"
#include "packalloc/disk_file.h"

namespace packalloc {
namespace {

#if defined(__x86_64__)
constexpr Elf64_Half kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr Elf64_Half kMachine = EM_AARCH64;
#elif defined(__riscv)
constexpr Elf64_Half kMachine = EM_RISCV;
#elif defined(__powerpc64__)
constexpr Elf64_Half kMachine = EM_PPC64;
#elif defined(__s390x__)
constexpr Elf64_Half kMachine = EM_S390;
#else
#error "which ELF machine is this?"
#endif
constexpr unsigned char kByteOrder = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB;

// Tables of symbols and of their names are some megabytes even of the largest libraries.
constexpr std::uint64_t kMaxTableBytes = std::uint64_t{256} << 20;

absl::Status NotALibrary(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("it is not a shared library of this machine: ", why));
}
absl::Status Damaged() { return NotALibrary("its tables reach beyond the file or make no sense"); }

std::string MachineName(Elf64_Half machine) {
  switch (machine) {
    case EM_386:
      return "x86 (32 bits)";
    case EM_X86_64:
      return "x86-64";
    case EM_ARM:
      return "ARM (32 bits)";
    case EM_AARCH64:
      return "AArch64";
    case EM_RISCV:
      return "RISC-V";
    default:
      return absl::StrCat("ELF machine ", machine);
  }
}

class ElfFile {
 public:
  static absl::StatusOr<ElfFile> Open(const std::string& path) {
    absl::StatusOr<std::shared_ptr<DiskFile>> file = DiskFile::Open(path);
    if (!file.ok()) return file.status();
    absl::StatusOr<std::uint64_t> size = (*file)->size();
    if (!size.ok()) return size.status();
    ElfFile elf(*std::move(file), *size);
    if (absl::Status header = elf.ReadHeader(); !header.ok()) return header;
    return elf;
  }

  // Every T of the table at `offset`.
  template <typename T>
  absl::StatusOr<std::vector<T>> Table(std::uint64_t offset, std::uint64_t bytes) const {
    if (bytes > kMaxTableBytes || !InRange<std::uint64_t>(offset, bytes, size_)) return Damaged();
    std::vector<T> table(bytes / sizeof(T));
    absl::Status read = file_->Read(offset, {reinterpret_cast<std::byte*>(table.data()), table.size() * sizeof(T)});
    if (!read.ok()) return read;
    return table;
  }

  const Elf64_Ehdr& header() const { return header_; }

 private:
  ElfFile(std::shared_ptr<DiskFile> file, std::uint64_t size) : file_(std::move(file)), size_(size) {}

  absl::Status ReadHeader() {
    if (size_ < sizeof header_) return NotALibrary(absl::StrCat("it has ", size_, " bytes"));
    absl::Status read = file_->Read(0, {reinterpret_cast<std::byte*>(&header_), sizeof header_});
    if (!read.ok()) return read;
    if (std::memcmp(header_.e_ident, ELFMAG, SELFMAG) != 0) return NotALibrary("it is not an ELF file");
    const bool this_class = header_.e_ident[EI_CLASS] == ELFCLASS64 && header_.e_ident[EI_DATA] == kByteOrder;
    if (!this_class || header_.e_machine != kMachine) {
      return NotALibrary(absl::StrCat("it is for ", MachineName(header_.e_machine),
                                      this_class ? "" : " with another word size or byte order", ", and this is ",
                                      MachineName(kMachine)));
    }
    if (header_.e_type != ET_DYN) return NotALibrary("it is an object file or a fixed-address program");
    if (header_.e_shentsize != sizeof(Elf64_Shdr) || header_.e_phentsize != sizeof(Elf64_Phdr)) return Damaged();
    return absl::OkStatus();
  }

  std::shared_ptr<DiskFile> file_;
  std::uint64_t size_;
  Elf64_Ehdr header_{};
};

absl::string_view NameAt(const std::vector<char>& names, std::size_t at) {
  if (at >= names.size()) return {};
  const auto begin = names.begin() + static_cast<std::ptrdiff_t>(at);
  return {&*begin, static_cast<std::size_t>(std::find(begin, names.end(), '\0') - begin)};
}

// The four bytes that lie at `address` when the file is loaded.
absl::StatusOr<std::uint32_t> ValueAt(const ElfFile& elf, std::uint64_t address) {
  absl::StatusOr<std::vector<Elf64_Phdr>> segments =
      elf.Table<Elf64_Phdr>(elf.header().e_phoff, std::uint64_t{elf.header().e_phnum} * sizeof(Elf64_Phdr));
  if (!segments.ok()) return segments.status();
  for (const Elf64_Phdr& segment : *segments) {
    if (segment.p_type != PT_LOAD || address < segment.p_vaddr) continue;
    const std::uint64_t at = address - segment.p_vaddr;
    if (!InRange<std::uint64_t>(at, sizeof(std::uint32_t), segment.p_memsz)) continue;
    if (!InRange<std::uint64_t>(at, sizeof(std::uint32_t), segment.p_filesz)) return 0;  // zeros, not in the file
    const std::optional<std::uint64_t> offset = CheckedAdd<std::uint64_t>(segment.p_offset, at);
    if (!offset) return Damaged();
    absl::StatusOr<std::vector<std::uint32_t>> value = elf.Table<std::uint32_t>(*offset, sizeof(std::uint32_t));
    if (!value.ok()) return value.status();
    return value->front();
  }
  return Damaged();
}

}  // namespace

absl::StatusOr<PluginFile> ReadPluginFile(const std::string& path) {
  absl::StatusOr<ElfFile> elf = ElfFile::Open(path);
  if (!elf.ok()) return elf.status();
  absl::StatusOr<std::vector<Elf64_Shdr>> sections =
      elf->Table<Elf64_Shdr>(elf->header().e_shoff, std::uint64_t{elf->header().e_shnum} * sizeof(Elf64_Shdr));
  if (!sections.ok()) return sections.status();
  PluginFile plugin;
  const Elf64_Sym* version = nullptr;
  absl::StatusOr<std::vector<Elf64_Sym>> symbols = std::vector<Elf64_Sym>{};
  for (const Elf64_Shdr& section : *sections) {
    if (section.sh_type != SHT_DYNSYM) continue;
    if (section.sh_link >= sections->size()) return Damaged();
    const Elf64_Shdr& strings = (*sections)[section.sh_link];
    symbols = elf->Table<Elf64_Sym>(section.sh_offset, section.sh_size);
    if (!symbols.ok()) return symbols.status();
    absl::StatusOr<std::vector<char>> names = elf->Table<char>(strings.sh_offset, strings.sh_size);
    if (!names.ok()) return names.status();
    for (const Elf64_Sym& symbol : *symbols) {
      if (symbol.st_shndx == SHN_UNDEF) continue;
      const absl::string_view name = NameAt(*names, symbol.st_name);
      if (name == kPluginVersionSymbol && ELF64_ST_TYPE(symbol.st_info) == STT_OBJECT) version = &symbol;
      if (name == kPluginBackendSymbol && ELF64_ST_TYPE(symbol.st_info) == STT_FUNC) plugin.has_backend = true;
    }
    break;  // there is one
  }
  if (version == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("it is no packalloc plugin: it exports no data symbol ", kPluginVersionSymbol));
  }
  constexpr std::uint64_t kPadded = 32;  // as clang's AddressSanitizer makes of it
  if (version->st_size != sizeof plugin.abi_version && version->st_size != kPadded) {
    return absl::InvalidArgumentError(
        absl::StrCat("its ", kPluginVersionSymbol, " has ", version->st_size, " bytes, not 4"));
  }
  absl::StatusOr<std::uint32_t> value = ValueAt(*elf, version->st_value);
  if (!value.ok()) return value.status();
  plugin.abi_version = *value;
  return plugin;
}

}  // namespace packalloc
