#include "lib/env.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>

#include "lib/parse.h"
#include "test/hostile_locale.h"
#include "test/stderr_of.h"

namespace packalloc {
namespace {

constexpr char kVariable[] = "PACKALLOC_TEST_VARIABLE";

struct SetVariable {
  explicit SetVariable(const std::string& value) { setenv(kVariable, value.c_str(), 1); }
  ~SetVariable() { unsetenv(kVariable); }
};

const char* const kGarbage[] = {"", " ", "abc", "-1", "1e3", "64MB", "0.5", "1,5", "99999999999999999999"};

void CheckGarbage(std::uint64_t default_value) {
  for (const char* text : kGarbage) {
    CAPTURE(text);
    const SetVariable set(text);
    std::uint64_t value = 0;
    const std::string warning = StderrOf([&] { value = EnvBytes(kVariable, default_value); });
    CHECK(value == default_value);
    CHECK(warning.find(kVariable) != std::string::npos);
    CHECK(warning.find("'" + std::string(text) + "'") != std::string::npos);
    CHECK(warning.find(std::to_string(default_value)) != std::string::npos);
    CHECK(std::count(warning.begin(), warning.end(), '\n') == 1);
    CHECK(StderrOf([&] { value = EnvBytes(kVariable, default_value); }).empty());
    CHECK(value == default_value);
  }
}

TEST_CASE("a size that cannot be read is one warning and the default") { CheckGarbage(1048576); }

TEST_CASE("the same under a comma locale with grouping") {
  const HostileLocale locale;
  if (!locale.has_comma()) MESSAGE("no comma locale for C here: only the C++ one is tried");
  CheckGarbage(2097152);
  const SetVariable set("1048576");
  CHECK(EnvBytes(kVariable, 7) == 1048576);
  const SetVariable half("0.5");
  CHECK(EnvDouble(kVariable, 7) == 0.5);
}

TEST_CASE("variables that can be read, or are not set, warn of nothing") {
  const std::string warnings = StderrOf([] {
    CHECK(EnvBytes(kVariable, 5) == 5);
    CHECK(EnvDouble(kVariable, 0.25) == 0.25);
    CHECK(EnvFlag(kVariable, true));
    CHECK_FALSE(EnvString(kVariable).has_value());
    {
      const SetVariable set("3MiB");
      CHECK(EnvBytes(kVariable, 5) == 3u << 20);
      CHECK(EnvString(kVariable) == "3MiB");
    }
    {
      const SetVariable set("0");
      CHECK_FALSE(EnvFlag(kVariable, true));
      CHECK(EnvBytes(kVariable, 5) == 0);
      CHECK(EnvDouble(kVariable, 5) == 0);
    }
    const SetVariable set("");
    CHECK_FALSE(EnvString(kVariable).has_value());
  });
  CHECK(warnings.empty());
}

TEST_CASE("flags and numbers that cannot be read are the default") {
  for (const char* text : {"", " ", "maybe", "2", "-1", "1,0"}) {
    CAPTURE(text);
    const SetVariable set(text);
    const std::string warning = StderrOf([] {
      CHECK(EnvFlag(kVariable, true));
      CHECK_FALSE(EnvFlag(kVariable, false));
    });
    CHECK(std::count(warning.begin(), warning.end(), '\n') == 2);
  }
  for (const char* text : {"", " ", "abc", "1,5", "0x10", "nan", "inf", "1e999", "0.5 ", "64MiB"}) {
    CAPTURE(text);
    const SetVariable set(text);
    const std::string warning = StderrOf([] { CHECK(EnvDouble(kVariable, 0.125) == 0.125); });
    CHECK(warning.find(kVariable) != std::string::npos);
    CHECK(warning.find("0.125") != std::string::npos);
  }
}

TEST_CASE("sizes with units") {
  CHECK(*ParseBytes("0") == 0);
  CHECK(*ParseBytes("12B") == 12);
  CHECK(*ParseBytes("2KiB") == 2048);
  CHECK(*ParseBytes("2kib") == 2048);
  CHECK(*ParseBytes("1GiB") == std::uint64_t{1} << 30);
  CHECK(*ParseBytes("1TiB") == std::uint64_t{1} << 40);
  CHECK(*ParseBytes("18446744073709551615") == std::numeric_limits<std::uint64_t>::max());
  for (const char* text :
       {"18446744073709551616", "16777216TiB", "KiB", "+1", "1 KiB", " 1", "1_000", "1MiBB", "0x10"}) {
    CAPTURE(text);
    CHECK(ParseBytes(text).status().code() == absl::StatusCode::kInvalidArgument);
  }
}

TEST_CASE("numbers as text end where the text ends") {
  CHECK(*ParseUint64("18446744073709551615") == std::numeric_limits<std::uint64_t>::max());
  CHECK_FALSE(ParseUint64(absl::string_view("12\0", 3)).ok());
  CHECK(*ParseUint64(absl::string_view("123", 2)) == 12);
  CHECK(Quoted(absl::string_view("a\0\nb", 4)) == "'a\\x00\\nb'");
  CHECK(Quoted(std::string(1000, 'x')).size() < 100);
}

TEST_CASE("text for a terminal: control characters and what is not UTF-8 are escaped, all else stays") {
  CHECK(Printable("a \\ 'b' \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80") ==
        "a \\ 'b' \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
  CHECK(Printable("\x1b[31m\n\t\x7f") == "\\x1b[31m\\x0a\\x09\\x7f");
  CHECK(Printable(std::string(1, '\0')) == "\\x00");
  CHECK(Printable("\xc2\x9b\xc2\xa0") == "\\xc2\\x9b\xc2\xa0");    // the control of one character, and a blank
  CHECK(Printable("\x9b\xff\xe2\x82") == "\\x9b\\xff\\xe2\\x82");  // of no character, or of half a one
  CHECK(Printable(Printable("\x1b")) == Printable("\x1b"));
  const std::string warning = StderrOf([] { WarnOnce("names \x1b[2J"); });
  CHECK(warning == "packalloc: warning: names \\x1b[2J\n");
}

TEST_CASE("a warning is written even to a stderr that takes none") {
  std::fflush(stderr);
  const int saved = dup(STDERR_FILENO);
  close(STDERR_FILENO);
  WarnOnce("into the void");
  dup2(saved, STDERR_FILENO);
  close(saved);
  CHECK(true);
}

}  // namespace
}  // namespace packalloc
