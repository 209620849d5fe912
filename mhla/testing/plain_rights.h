// Tests run as root too, and root may do everything: while this lives, permissions count for this thread and for the
// programs it starts. Included by tests only.
#pragma once

#include <linux/capability.h>
#include <linux/securebits.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace mhla {

class PlainRights {
 public:
  PlainRights() : bits_(::prctl(PR_GET_SECUREBITS)) {
    ::prctl(PR_SET_SECUREBITS,
            static_cast<unsigned long>(bits_) | SECBIT_NOROOT);  // root's programs start as others do
    ::syscall(SYS_capget, &header_, kept_);
    __user_cap_data_struct less[2] = {kept_[0], kept_[1]};
    less[0].effective &= ~(1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH);
    ::syscall(SYS_capset, &header_, less);
  }
  ~PlainRights() {
    ::syscall(SYS_capset, &header_, kept_);
    ::prctl(PR_SET_SECUREBITS, static_cast<unsigned long>(bits_));
  }
  PlainRights(const PlainRights&) = delete;
  PlainRights& operator=(const PlainRights&) = delete;

 private:
  int bits_;
  __user_cap_header_struct header_{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct kept_[2]{};
};

}  // namespace mhla
