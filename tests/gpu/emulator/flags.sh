# Compiler flags of the emulator, for smoke.sh and emulate.sh. Kernels look at the same memory as several types.
emulator_flags="-std=c++20 -O2 -ffp-contract=off -fno-strict-aliasing -ftls-model=local-exec -mfma -Itests/gpu/emulator -I."
case $(${CXX:-g++} --version) in
  *clang*) emulator_flags="$emulator_flags -Wno-undefined-internal" ;;
  *) emulator_flags="$emulator_flags -fno-extern-tls-init" ;; # shared memory is defined without C++
esac
