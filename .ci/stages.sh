# The stages of .ci/run. Each is a function that succeeds or fails; .ci/run says in which order they run, measures them
# and goes on after one that failed. A new stage is a function here and a line there.

ci_packages=(clang-14 clang-format-14 clang-tidy-14 gcovr libclang-rt-14-dev llvm-14 python3-yaml)
code_folders=(include lib backends tools bench examples test)
tidy_folders='(lib|backends|tools)'

stage_packages() (
  set_up tests
  install_required "${ci_packages[@]}"
)

stage_format() {
  find "${code_folders[@]}" -name '*.h' -o -name '*.cc' | xargs clang-format-14 --dry-run -Werror
}

# Headers are read with the files that include them. The compile commands are clang's own, of the sanitizer build.
stage_tidy() {
  run-clang-tidy-14 -quiet -p build-asan -header-filter="/\.\./(include/packalloc|lib|backends|tools)/" \
    "$PWD/$tidy_folders/.*\.cc$" >tidy.log 2>&1 && rm tidy.log && return
  grep -E '(warning|error): ' tidy.log | sort -u
  return 1
}

stage_plain() {
  ./check -Dwerror=true
}

# Random tests do less where each step costs ten times as much.
export_sanitizer_env() { export PACKALLOC_STACKS=2 PACKALLOC_MODEL_STEPS=4000; }

# Line numbers are all that a sanitizer's report needs of debug information, and cost less than the whole.
sanitizer_options=(-Dwerror=true -Dbenchmarks=disabled -Doptimization=1 -Ddebug=false -Dcpp_args=-g1)

# It counts the lines that run too: a build and a run of their own would take much longer.
stage_build_asan() (
  export CC=clang-14 CXX=clang++-14
  configure build-asan "${sanitizer_options[@]}" -Db_sanitize=address,undefined -Db_lundef=false -Db_coverage=true \
    -Dfuzzers=true
  build_in build-asan
)

stage_asan() (
  export_sanitizer_env
  find build-asan -name '*.gcda' -delete  # counts of another build: a program that cannot add to them says so
  export ASAN_OPTIONS=allocator_may_return_null=1:detect_stack_use_after_return=1:strict_string_checks=1:check_initialization_order=1
  export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
  export LSAN_OPTIONS="suppressions=$PWD/.ci/lsan.supp:print_suppressions=0"
  test_in build-asan --timeout-multiplier 10
)

# Lines that no test reaches, in build-asan/coverage.txt; docs/testing.md says why.
stage_coverage() {
  gcovr --root . --object-directory build-asan --gcov-executable 'llvm-cov-14 gcov' \
    --filter include/ --filter lib/ --filter backends/ --exclude-throw-branches --exclude-unreachable-branches \
    --output build-asan/coverage.txt --fail-under-line 97 || return
  tail -n 3 build-asan/coverage.txt
}

# Prints what programs are to be run by, without address randomisation where that is allowed: g++ 12's runtime does not
# know the layouts of newer kernels.
tsan_wrapper() {
  local fixed=(setarch "$(uname -m)" -R)
  ! "${fixed[@]}" true 2>/dev/null || printf '%s' "${fixed[*]}"
}

tsan_works() (
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  echo 'int main() {}' >"$folder/main.cc"
  g++ -fsanitize=thread "$folder/main.cc" -o "$folder/main" || exit
  for _ in {1..10}; do $(tsan_wrapper) "$folder/main" || exit; done
) 2>/dev/null

stage_build_tsan() (
  configure build-tsan "${sanitizer_options[@]}" -Db_sanitize=thread
  build_in build-tsan
)

stage_tsan() (
  export_sanitizer_env
  # How long each process with threads waits at its end for races: a second by default.
  export TSAN_OPTIONS="atexit_sleep_ms=20:allocator_may_return_null=1:suppressions=$PWD/.ci/tsan.supp:second_deadlock_stack=1"
  test_in build-tsan --timeout-multiplier 10 --wrapper="$(tsan_wrapper)"
)

# What is installed is enough to build on: headers, library, pkg-config file.
stage_install() (
  local target library_dir
  target=$(mktemp -d)
  trap 'rm -rf "$target"' EXIT
  meson install -C build --no-rebuild --quiet --destdir "$target" || exit
  library_dir=$(dirname "$(find "$target" -name packalloc.pc)")
  export PKG_CONFIG_PATH=$library_dir PKG_CONFIG_SYSROOT_DIR=
  use() { pkg-config --define-variable=prefix="$target/usr/local" --cflags --libs "$@"; }
  g++ -std=c++20 examples/ten_lines.cc -o "$target/ten_lines" $(use packalloc) && "$target/ten_lines" &&
    g++ -std=c++20 -I. examples/contract_test.cc test/main.cc -o "$target/contract" $(use packalloc_testing) &&
    "$target/contract" --minimal
)

# A million steps against the model, by two processes; the plain build has run some thousand.
stage_model() (
  export PACKALLOC_MODEL_STEPS=500000
  seq 2 | xargs -P 2 -I{} build/test/model_test
)

# Each fuzzer for a short while, from a copy of its corpus; two at a time.
stage_fuzz() (
  inputs=$(mktemp -d)
  trap 'rm -rf "$inputs"' EXIT
  fuzz_one() {
    build-asan/test/fuzz/fuzz_"$1" -seed=1 -max_total_time=15 -print_final_stats=0 -verbosity=0 \
      -artifact_prefix="build-asan/$1-" "$2/$1" >"$2/$1.log" 2>&1 || { tail -n 40 "$2/$1.log"; return 1; }
  }
  export -f fuzz_one
  cp -r test/fuzz/corpus/* "$inputs/"
  (cd test/fuzz/corpus && ls) | xargs -P 2 -I{} bash -c 'fuzz_one {} '"$inputs"
)
