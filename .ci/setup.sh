# Sourced by ./demo, ./check and .ci/run, from the project's folder: installs what is missing, configures, builds, tests.
# Every step is quick when there is nothing to do, and ends the program with one sentence when it fails.

required_packages=(meson ninja-build g++ pkg-config libabsl-dev libcli11-dev nlohmann-json3-dev zlib1g-dev doctest-dev)
# Without these the build leaves a part out and says so.
optional_packages=(ocl-icd-opencl-dev opencl-headers pocl-opencl-icd liburing-dev python3-venv)
test_packages=(libbenchmark-dev oclgrind libdlpack-dev python3-torch)  # of tests and benchmarks alone
cuda_wheel='nvidia-cuda-runtime==13.0.*'  # holds cuda.h, for where no toolkit is installed
numpy_wheel='numpy>=2.1'                   # versioned DLPack, which Debian's has not
# TVM-FFI with headers and library, each release in a folder of its own: the one in which libtvm_ffi.so makes its objects
# with the allocator that is set (yanked, but there when asked for by number), and the newest of the ABI that is known.
declare -A tvm_ffi_wheels=([.venv/tvm_ffi-0.1.13]='apache-tvm-ffi==0.1.13' [.venv/tvm_ffi-newest]='apache-tvm-ffi<0.2')
untried=build/.optional-missing           # what could not be had last time, so that the next run does not wait for it

say() { printf -- '-- %s\n' "$*"; }
die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# The packages of "$@" that are not installed.
missing_packages() {
  local package
  for package in "$@"; do
    [[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] || printf '%s\n' "$package"
  done
}

# apt-get as root: directly, or by sudo, which asks for a password only on a terminal. Says nothing unless it fails.
apt_get() {
  local prefix=() log
  if [[ $(id -u) != 0 ]]; then
    prefix=(sudo)
    [[ -t 0 ]] || prefix+=(-n)
  fi
  log=$(mktemp)
  if ! "${prefix[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 "$@" >"$log" 2>&1; then
    grep -E '^(E:|sudo:)' "$log" >&2
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
}

can_install() { [[ $(id -u) == 0 ]] || command -v sudo >/dev/null; }

apt_update_once() {
  [[ -z "${apt_updated:-}" ]] || return 0
  apt_get update || return 1
  apt_updated=1
}

# install_required PACKAGE...: all of them, or the program ends.
install_required() {
  local missing
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]} > 0)) || return 0
  can_install || die "not installed: ${missing[*]}; run this as root or with sudo, or install them with: apt-get install ${missing[*]}"
  say "installing ${missing[*]}"
  apt_update_once || die "apt-get update failed, so ${missing[*]} cannot be installed"
  apt_get install --no-install-recommends "${missing[@]}" || die "apt-get could not install ${missing[*]}"
}

# install_optional PACKAGE...: one by one, so that one failure does not stop the rest.
install_optional() {
  local package
  can_install && apt_update_once || return 0
  for package in "$@"; do
    say "installing $package"
    apt_get install --no-install-recommends "$package" || true
  done
}

# The folder of cuda.h, where there is one.
cuda_include_dir() {
  local dir
  for dir in /usr/local/cuda/include /usr/include "$PWD"/.venv/lib/python3*/site-packages/nvidia/*/include; do
    [[ -f $dir/cuda.h ]] && printf '%s\n' "$dir" && return
  done
}

# pip_install WHAT PIP-ARGUMENT...: into .venv, which is made first. A failure leaves the part out.
pip_install() {
  local what=$1
  shift
  command -v python3 >/dev/null || return 0
  say "downloading $what into .venv"
  [[ -x .venv/bin/pip ]] || python3 -m venv .venv >/dev/null 2>&1 || return 0
  .venv/bin/pip install --quiet --quiet --retries 1 --timeout 30 "$@" || true
}

has_numpy() { compgen -G '.venv/lib/python3*/site-packages/numpy' >/dev/null; }

has_tvm_ffi() {
  local folder
  for folder in "${!tvm_ffi_wheels[@]}"; do [[ -f $folder/tvm_ffi/lib/libtvm_ffi.so ]] || return; done
}

install_tvm_ffi() {
  local folder
  for folder in "${!tvm_ffi_wheels[@]}"; do
    pip_install "${tvm_ffi_wheels[$folder]}" --target "$folder" --upgrade "${tvm_ffi_wheels[$folder]}"
  done
}

# What the machine lacks of the optional parts: packages, cuda.h, and for tests NumPy and the real TVM-FFI.
missing_optional() {
  missing_packages "${optional_packages[@]}"
  [[ -n "$(cuda_include_dir)" ]] || printf 'cuda.h\n'
  [[ -n ${for_tests:-} ]] || return 0
  has_numpy || printf 'numpy\n'
  has_tvm_ffi || printf 'apache-tvm-ffi\n'
}

# set_up [tests]: installs what is missing of what the library and the command need, and with "tests" of what those do.
set_up() {
  local missing before for_tests=${1:-}
  [[ -z $for_tests ]] || optional_packages+=("${test_packages[@]}")
  if ! command -v dpkg-query >/dev/null; then
    say "this is no Debian: meson, ninja and the libraries of README.md are taken as they are"
    return 0
  fi
  install_required "${required_packages[@]}"
  before=$(missing_optional)
  [[ -n $before ]] || return 0
  if [[ -f $untried && -z "$(grep -vxFf "$untried" <<<"$before")" ]]; then
    say "left out, as before: ${before//$'\n'/ } (rm $untried to try again)"
    return 0
  fi
  mapfile -t missing < <(missing_packages "${optional_packages[@]}")
  ((${#missing[@]} == 0)) || install_optional "${missing[@]}"
  [[ -n "$(cuda_include_dir)" ]] || pip_install "cuda.h ($cuda_wheel)" --no-deps "$cuda_wheel"
  if [[ -n $for_tests ]]; then
    has_numpy || pip_install "$numpy_wheel" "$numpy_wheel"
    has_tvm_ffi || install_tvm_ffi
  fi
  newly_installed=1
  still_missing=$(missing_optional)
  [[ -z $still_missing ]] || say "not to be had, and left out: ${still_missing//$'\n'/ }"
}

# configure FOLDER [MESON OPTION...]: only where something changed. Options stay until others are given, also those that
# another hand gave; for another compiler (CXX) the folder is made anew.
configure() {
  local folder=$1 cuda log again=() had=() wanted=()
  shift
  cuda=$(cuda_include_dir)
  if [[ -d $folder && ! -w $folder ]]; then
    die "$folder/ belongs to $(stat -c %U "$folder"): run this as that user, or remove it"
  fi
  if [[ -f $folder/build.ninja ]]; then
    [[ ! -f $folder/.options ]] || mapfile -t had <"$folder/.options"
    wanted=("${CXX:-${had[0]:-}}" "$cuda" "${*:-${had[2]:-}}")
    [[ -n "${newly_installed:-}" || "${wanted[*]}" != "${had[*]}" ]] || return 0
    if [[ ${had[0]+known} && ${had[0]} != "${wanted[0]}" ]]; then
      rm -rf "$folder"
      wanted[2]=$*
    else
      meson configure --clearcache "$folder" >/dev/null  # what was not there may be there now
      again=(--reconfigure)
    fi
  else
    wanted=("${CXX:-}" "$cuda" "$*")
  fi
  say "configuring $folder"
  log=$(mktemp)
  if ! meson setup "${again[@]}" "$folder" -Dcuda-include-dir="$cuda" "$@" >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    die "meson could not configure $folder"
  fi
  sed -n '/^  Built/,/User defined options\|Found ninja/{/User defined options\|Found ninja\|^$/!p}' "$log"
  rm -f "$log"
  printf '%s\n' "${wanted[@]}" >"$folder/.options"
  [[ $folder != build || -z "${still_missing:-}" ]] || printf '%s\n' "$still_missing" >"$untried"
}

# build_in FOLDER [TARGET...]: everything, or the targets.
build_in() {
  local folder=$1
  shift
  say "building in $folder"
  ninja -C "$folder" --quiet "$@" || die "the build in $folder failed"
}

# test_in FOLDER [MESON TEST OPTION...]: runs every test; its last line is "N passed, N failed". Fails when one did.
test_in() {
  local folder=$1
  shift
  say "testing in $folder"
  rm -f "$folder"/meson-logs/testlog*.json
  meson test -C "$folder" --no-rebuild --print-errorlogs "$@" || true
  python3 .ci/count_tests.py "$folder"
}
