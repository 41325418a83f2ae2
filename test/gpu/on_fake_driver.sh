#!/bin/sh
# on_fake_driver.sh GPU_TEST LIBCUDA: gpu_test works before there is a GPU to run it on. It needs nothing but the C
# library (and a sanitizer's, in such a build), is skipped where there is no driver, and on the strict fake driver
# everything passes but what that has not: kernels, and copies beyond the bound given.
gpu_test=$1
libcuda=$2
failed=0
fail() {
  echo "FAILED: $1"
  failed=1
}

needed=$(readelf -d "$gpu_test" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
  grep -vE '^(ld-linux.*|lib(c|m|dl|rt|pthread|asan|tsan|ubsan))\.so')
[ -z "$needed" ] || fail "it needs libraries that another machine may lack: $needed"

PACKALLOC_LIBCUDA=/nonexistent/libcuda.so.1 "$gpu_test" >/dev/null
status=$?
[ $status -eq 77 ] || fail "without a driver it exits with $status, not 77"
"$gpu_test" --only nonsense >/dev/null 2>&1
status=$?
[ $status -eq 2 ] || fail "with wrong arguments it exits with $status, not 2"

log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
PACKALLOC_LIBCUDA=$libcuda FAKE_CUDA_DEVICES=2 FAKE_CUDA_CAPACITY=268435456 FAKE_CUDA_EXIT_ON_VIOLATION=66 \
  "$gpu_test" --max-bytes 4194304 --seconds 0 >"$log" 2>&1
status=$?
[ $status -eq 3 ] || fail "on the fake driver it exits with $status, not 3"
grep -q '^- FAILED' "$log" && fail "on the fake driver a check fails"
[ "$(grep -c '^- not tried' "$log")" -eq 3 ] || fail "on the fake driver other things are left out than those three"
for part in 'The contract suite' '| 4 MiB |' 'RESOURCE_EXHAUSTED' 'flushes: 1' 'Two devices'; do
  grep -qF "$part" "$log" || fail "on the fake driver it does not say '$part'"
done
[ $failed -eq 0 ] || cat "$log"
exit $failed
