#!/bin/sh
# under_oclgrind.sh PROGRAM: runs a test on Oclgrind with its API checker. Oclgrind exits 0 in spite of what it finds, so
# its log has to be empty. Exit status 77 (skipped) where it is not installed.
library=
for candidate in /usr/lib/oclgrind/liboclgrind-rt-icd.so /usr/lib/*/oclgrind/liboclgrind-rt-icd.so \
  /usr/local/lib/oclgrind/liboclgrind-rt-icd.so; do
  if [ -e "$candidate" ]; then library=$candidate; fi
done
if [ -z "$library" ]; then
  echo "SKIPPED: Oclgrind is not installed (Debian: oclgrind)"
  exit 77
fi
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
OCL_ICD_VENDORS=$library OCLGRIND_CHECK_API=1 OCLGRIND_LOG=$log "$@"
status=$?
if [ -s "$log" ]; then
  echo "Oclgrind found:"
  cat "$log"
  exit 1
fi
echo "Oclgrind found nothing"
exit $status
