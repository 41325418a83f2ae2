// FAKE_CUDA_MISSING=cuMemAlloc_v2[,...]: a driver without these entry points. As the library is loaded their names are
// spoiled in its own table of dynamic symbols, so that dlsym does not find them, as in an older driver.
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

namespace {

struct SymbolTable {
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  size_t count = 0;
};

// The dynamic linker has relocated these pointers in place.
SymbolTable OwnSymbols() {
  SymbolTable table;
  for (const ElfW(Dyn)* entry = _DYNAMIC; entry->d_tag != DT_NULL; ++entry) {
    auto address = static_cast<uintptr_t>(entry->d_un.d_ptr);
    switch (entry->d_tag) {
      case DT_SYMTAB:
        table.symbols = reinterpret_cast<const ElfW(Sym)*>(address);
        break;
      case DT_STRTAB:
        table.names = reinterpret_cast<const char*>(address);
        break;
      case DT_HASH:
        table.count = reinterpret_cast<const uint32_t*>(address)[1];
        break;
      default:
        break;
    }
  }
  return table;
}

bool Hide(const SymbolTable& table, std::string_view name) {
  for (size_t i = 0; i < table.count; ++i) {
    const char* at = table.names + table.symbols[i].st_name;
    if (name != at) continue;
    uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    uintptr_t begin = reinterpret_cast<uintptr_t>(at) / page * page;
    if (mprotect(reinterpret_cast<void*>(begin), page, PROT_READ | PROT_WRITE) != 0) return false;
    *const_cast<char*>(at) = '-';
    mprotect(reinterpret_cast<void*>(begin), page, PROT_READ);
    return true;
  }
  return false;
}

[[gnu::constructor]] void HideMissing() {
  const char* variable = std::getenv("FAKE_CUDA_MISSING");
  if (variable == nullptr) return;
  SymbolTable table = OwnSymbols();
  std::string_view rest = variable;
  while (!rest.empty()) {
    std::string_view name = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
    if (!Hide(table, name)) {
      std::fprintf(stderr, "fake_cuda: FAKE_CUDA_MISSING: there is no %.*s\n", static_cast<int>(name.size()),
                   name.data());
    }
  }
}

}  // namespace
