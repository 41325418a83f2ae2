// A folder for one test's files, removed with all that is in it.
#ifndef PACKALLOC_TEST_TEMP_DIR_H_
#define PACKALLOC_TEST_TEMP_DIR_H_

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace packalloc {

class TempDir {
 public:
  // Under `parent`; empty: TMPDIR, else /tmp.
  explicit TempDir(std::string parent = "") {
    if (parent.empty()) parent = std::filesystem::temp_directory_path().string();
    std::string name = parent + "/packalloc-test-XXXXXX";
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

  // Writes a file of `bytes` and returns its path.
  std::string Write(const std::string& name, const std::string& bytes) const {
    std::ofstream file(path_ + "/" + name, std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    file.close();
    REQUIRE(file.good());
    return path_ + "/" + name;
  }

 private:
  std::string path_;
};

// Bytes that differ from place to place, with a period that no power of two divides.
inline std::string TextPattern(std::size_t nbytes, unsigned seed = 0) {
  std::string bytes(nbytes, '\0');
  for (std::size_t i = 0; i < nbytes; ++i) bytes[i] = static_cast<char>((i * 7 + i / 251 + seed) % 251);
  return bytes;
}

}  // namespace packalloc

#endif  // PACKALLOC_TEST_TEMP_DIR_H_
