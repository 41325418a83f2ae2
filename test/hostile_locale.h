// A process whose locales do all they can to spoil a number: the global C++ one groups digits and has a decimal comma,
// and so has the C one where the system has such a locale or can make it.
#ifndef PACKALLOC_TEST_HOSTILE_LOCALE_H_
#define PACKALLOC_TEST_HOSTILE_LOCALE_H_

#include <clocale>
#include <cstdlib>
#include <filesystem>
#include <locale>
#include <string>

#include "test/temp_dir.h"

namespace packalloc {

class HostileLocale {
 public:
  HostileLocale() : before_(std::locale::global(std::locale(std::locale::classic(), new Grouping))) {
    if (std::setlocale(LC_ALL, kName) != nullptr) return;
    const std::string make = std::string("localedef -i de_DE -f UTF-8 '") + directory_ / kName + "' >/dev/null 2>&1";
    if (std::system(make.c_str()) != 0) return;
    setenv("LOCPATH", directory_.path().c_str(), 1);
    std::setlocale(LC_ALL, kName);
  }
  HostileLocale(const HostileLocale&) = delete;
  HostileLocale& operator=(const HostileLocale&) = delete;
  ~HostileLocale() {
    std::setlocale(LC_ALL, "C");
    unsetenv("LOCPATH");
    std::locale::global(before_);
  }

  // Whether the C locale has a decimal comma too.
  bool has_comma() const { return std::localeconv()->decimal_point == std::string(","); }

 private:
  static constexpr char kName[] = "de_DE.UTF-8";
  class Grouping : public std::numpunct<char> {
    char do_thousands_sep() const override { return '.'; }
    char do_decimal_point() const override { return ','; }
    std::string do_grouping() const override { return "\3"; }
  };

  TempDir directory_;
  std::locale before_;
};

}  // namespace packalloc

#endif  // PACKALLOC_TEST_HOSTILE_LOCALE_H_
