#include "packalloc/model_file.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "packalloc/backends/cpu.h"
#include "packalloc/copy.h"
#include "test/temp_dir.h"

namespace packalloc {
namespace {

// A safetensors file: the header's length, the header, the bytes.
std::string Safetensors(const std::string& header, const std::string& data) {
  std::string file(8, '\0');
  for (int i = 0; i < 8; ++i) file[static_cast<std::size_t>(i)] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  return file + header + data;
}

std::string Content(const ModelTensor& tensor) {
  std::string bytes(tensor.nbytes(), '\0');
  REQUIRE(
      tensor.source.allocator.copyout({reinterpret_cast<std::byte*>(bytes.data()), bytes.size()}, tensor.source.buffer)
          .ok());
  return bytes;
}

TEST_CASE("a safetensors file: names, types, shapes, bytes and metadata") {
  const TempDir dir;
  const std::string data = TextPattern(24 + 2 + 0 + 4);
  const std::string header =
      R"({"b":{"dtype":"BF16","shape":[1],"data_offsets":[24,26]},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("empty":{"dtype":"F64","shape":[0,9223372036854775808],"data_offsets":[26,26]},)"
      R"("scalar":{"dtype":"I32","shape":[],"data_offsets":[26,30]},"__metadata__":{"format":"pt"}}  )";
  absl::StatusOr<ModelFile> model = OpenModel(dir.Write("m.safetensors", Safetensors(header, data)));
  REQUIRE_MESSAGE(model.ok(), model.status().ToString());
  REQUIRE(model->tensors.size() == 4);
  CHECK(model->tensors[0].name == "a");
  CHECK(model->tensors[0].dtype == "F32");
  CHECK(model->tensors[0].shape == std::vector<std::uint64_t>{2, 3});
  CHECK(Content(model->tensors[0]) == data.substr(0, 24));
  CHECK(model->tensors[1].name == "b");
  CHECK(Content(model->tensors[1]) == data.substr(24, 2));
  CHECK(model->tensors[2].nbytes() == 0);
  CHECK(model->tensors[3].name == "scalar");
  CHECK(Content(model->tensors[3]) == data.substr(26, 4));
  CHECK(model->metadata == std::vector<std::pair<std::string, std::string>>{{"format", "pt"}});

  const PackedAllocator cpu = *Pack(CpuAllocator());
  std::vector<CopyPair> pairs;
  for (const ModelTensor& tensor : model->tensors) pairs.push_back({{cpu, *cpu.alloc(tensor.nbytes())}, tensor.source});
  REQUIRE(CopyAll(pairs).ok());
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    std::string got(pairs[i].dest.buffer.nbytes(), '\0');
    REQUIRE(cpu.copyout({reinterpret_cast<std::byte*>(got.data()), got.size()}, pairs[i].dest.buffer).ok());
    CHECK(got == Content(model->tensors[i]));
    REQUIRE(cpu.free(pairs[i].dest.buffer, got.size()).ok());
  }
}

TEST_CASE("what the format's own library takes is taken") {
  for (const char* dtype : {"F8_E4M3FNUZ", "F8_E5M2FNUZ"}) {
    const std::string header = absl::StrCat(R"({"t":{"dtype":")", dtype, R"(","shape":[3],"data_offsets":[0,3]}})");
    CHECK(ParseSafetensorsHeader(header, 3).ok());
  }
  CHECK(ParseSafetensorsHeader(R"({"__metadata__":null})", 0).ok());
  CHECK(ParseSafetensorsHeader(R"({"t":{"dtype":"F32","shape":[],"data_offsets":[0,4],"x":{"y":[1]}}})", 4).ok());
}

TEST_CASE("a header of many tensors") {
  // 40,000 took more than ten seconds where each was compared with all before it; no time is asserted here.
  std::string header = "{";
  constexpr int kTensors = 40'000;
  for (int i = 0; i < kTensors; ++i) {
    absl::StrAppend(&header, i == 0 ? "" : ",", R"("t)", i, R"(":{"dtype":"U8","shape":[1],"data_offsets":[)", i, ",",
                    i + 1, "]}");
  }
  const absl::StatusOr<SafetensorsHeader> parsed = ParseSafetensorsHeader(header + "}", kTensors);
  REQUIRE(parsed.ok());
  CHECK(parsed->tensors.size() == kTensors);
  CHECK(parsed->tensors[12'345].name == "t12345");
}

TEST_CASE("bad headers are refused with what is wrong") {
  const auto refuse = [](const std::string& header, std::uint64_t data_bytes, const char* what) {
    CAPTURE(header);
    absl::StatusOr<SafetensorsHeader> parsed = ParseSafetensorsHeader(header, data_bytes);
    CHECK(parsed.status().code() == absl::StatusCode::kInvalidArgument);
    CHECK_MESSAGE(absl::StrContains(parsed.status().message(), what), parsed.status().ToString());
  };
  const auto tensor = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return absl::StrCat(R"({"t":{"dtype":")", dtype, R"(","shape":)", shape, R"(,"data_offsets":)", offsets, "}}");
  };
  refuse("", 0, "not JSON");
  refuse("{", 0, "not JSON");
  refuse("[]", 0, "not a JSON object");
  refuse("{} x", 0, "not JSON");
  refuse(R"({"t":1})", 0, "not an object");
  refuse(R"({"t":{}})", 0, "dtype");
  refuse(std::string("{}\0{", 4), 0, "byte 2 is NUL");
  refuse(std::string("{}\0\0", 4), 0, "byte 2 is NUL");
  refuse("\xEF\xBB\xBF{}", 0, "byte order mark");
  refuse(R"({"\u001b[2J\n":{"dtype":"F32"}})", 4, R"(tensor '\x1b[2J\n')");
  refuse(tensor("F32", "[1]", "[0,4]") + "", 3, "pass the end");
  refuse(tensor("F32", "[1]", "[4,8]"), 8, "belong to no tensor");
  refuse(tensor("F32", "[1]", "[0,4]"), 5, "belong to no tensor");
  refuse(tensor("F33", "[1]", "[0,4]"), 4, "unknown dtype 'F33'");
  refuse(tensor("F32", "[2]", "[0,4]"), 4, "takes 8");
  refuse(tensor("F32", "[-1]", "[0,4]"), 4, "not a size");
  refuse(tensor("F32", "[1.5]", "[0,4]"), 4, "not a size");
  refuse(tensor("F32", "1", "[0,4]"), 4, "shape");
  refuse(tensor("F32", "[1]", "[4,0]"), 4, "begin and an end");
  refuse(tensor("F32", "[1]", "[0]"), 4, "data_offsets");
  refuse(tensor("F32", "[1]", "[-4,0]"), 4, "begin and an end");
  refuse(tensor("F32", "[4611686018427387905]", "[0,4]"), 4, "overflows");
  refuse(tensor("U8", "[4294967296,4294967296]", "[0,0]"), 0, "overflows");
  refuse(tensor("F4", "[3]", "[0,1]"), 1, "whole bytes");
  refuse(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
         6, "overlap");
  refuse(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
         0, "twice");
  refuse(R"({"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0, "twice");
  refuse(R"({"__metadata__":{"a":1}})", 0, "not a string");
  refuse(R"({"__metadata__":[]})", 0, "not an object");
  refuse(std::string(100000, '[') + std::string(100000, ']'), 0, "deeper");
  CHECK(ParseSafetensorsHeader("{}", 0).ok());
  CHECK(ParseSafetensorsHeader(tensor("F4", "[4]", "[0,2]"), 2).ok());
}

TEST_CASE("bad files are refused with their path") {
  const TempDir dir;
  const auto refuse = [](const std::string& path, absl::StatusCode code) {
    absl::StatusOr<ModelFile> model = OpenModel(path);
    CHECK(model.status().code() == code);
    CHECK_MESSAGE(absl::StrContains(model.status().message(), path), model.status().ToString());
  };
  refuse(dir.Write("short.safetensors", "1234567"), absl::StatusCode::kInvalidArgument);
  refuse(dir.Write("long.safetensors", std::string(8, '\xff')), absl::StatusCode::kInvalidArgument);
  refuse(dir.Write("beyond.safetensors", Safetensors("{}", "").substr(0, 9)), absl::StatusCode::kInvalidArgument);
  refuse(dir.Write("rest.safetensors", Safetensors("{}", "x")), absl::StatusCode::kInvalidArgument);
  refuse(dir.Write("empty.safetensors", ""), absl::StatusCode::kInvalidArgument);
  refuse(dir / "none.safetensors", absl::StatusCode::kNotFound);
  refuse(dir.Write("a.index.json", "{"), absl::StatusCode::kInvalidArgument);
  refuse(dir.Write("b.index.json", "{}"), absl::StatusCode::kInvalidArgument);
  refuse(dir.Write("c.index.json", R"({"weight_map":{"t":"../x.safetensors"}})"), absl::StatusCode::kInvalidArgument);
  refuse(dir.Write("d.index.json", R"({"weight_map":{"t":1}})"), absl::StatusCode::kInvalidArgument);
  refuse(dir.Write("e.index.json", R"({"weight_map":{"t":"missing.safetensors"}})"), absl::StatusCode::kNotFound);
}

TEST_CASE("the name of a shard is escaped in its error, whatever is wrong with the shard") {
  const TempDir dir;
  const std::string index = dir.Write("m.index.json", R"({"weight_map":{"t":"\u001b[2J.safetensors"}})");
  for (const bool there : {false, true}) {
    if (there) dir.Write("\x1b[2J.safetensors", "short");
    const absl::Status status = OpenModel(index).status();
    CHECK_FALSE(status.ok());
    CHECK(absl::StrContains(status.message(), "\\x1b[2J.safetensors"));
    CHECK_FALSE(absl::StrContains(status.message(), "\x1b"));
  }
}

TEST_CASE("a sharded model takes each tensor from its shard") {
  const TempDir dir;
  dir.Write("1.safetensors", Safetensors(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", "abc"));
  dir.Write("2.safetensors", Safetensors(R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "de"));
  absl::StatusOr<ModelFile> model = OpenModel(dir.Write(
      "m.index.json", R"({"metadata":{"total_size":5},"weight_map":{"b":"2.safetensors","a":"1.safetensors"}})"));
  REQUIRE_MESSAGE(model.ok(), model.status().ToString());
  REQUIRE(model->tensors.size() == 2);
  CHECK(Content(model->tensors[0]) == "abc");
  CHECK(Content(model->tensors[1]) == "de");
  CHECK(model->files.size() == 2);
  const absl::Status lacks = OpenModel(dir.Write("n.index.json", R"({"weight_map":{"b":"1.safetensors"}})")).status();
  CHECK(absl::StrContains(lacks.message(), "has no tensor 'b'"));
}

TEST_CASE("any other file is one tensor of bytes") {
  const TempDir dir;
  const std::string bytes = TextPattern(777);
  absl::StatusOr<ModelFile> model = OpenModel(dir.Write("weights.bin", bytes));
  REQUIRE(model.ok());
  REQUIRE(model->tensors.size() == 1);
  CHECK(model->tensors[0].name == "weights.bin");
  CHECK(model->tensors[0].dtype == "U8");
  CHECK(Content(model->tensors[0]) == bytes);
  CHECK(OpenModel(dir.Write("none", "")).value().tensors[0].nbytes() == 0);
}

}  // namespace
}  // namespace packalloc
