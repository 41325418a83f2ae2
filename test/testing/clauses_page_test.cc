// docs/testing.md lists the clauses that there are.
#include <doctest/doctest.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "packalloc/testing/check_contract.h"

namespace packalloc::testing {
namespace {

TEST_CASE("the page lists every clause, in order, and no others") {
  std::ifstream page(PACKALLOC_CLAUSES_PAGE);
  REQUIRE(page.good());
  std::vector<std::string> listed;
  bool table = false;
  for (std::string line; std::getline(page, line);) {
    table = line == "### The clauses" || (table && !absl::StartsWith(line, "## "));
    if (table && absl::StartsWith(line, "| `")) listed.push_back(line);
  }
  std::vector<std::string> wanted;
  for (const auto& [clause, what] : Clauses()) wanted.push_back(absl::StrCat("| `", clause, "` | ", what, " |"));
  CHECK(listed == wanted);
}

}  // namespace
}  // namespace packalloc::testing
