// Bytes that this process has sent over TCP so far, as the kernel counts them for each of its connections, without
// those that it sent again: what `mhla bench scale` holds against the formula.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "mhla/train/distributed/team.h"

namespace mhla::apps {

// Connections to the port `but` of the other end are left out: those to the store. None where the system does not say.
std::optional<std::int64_t> tcp_bytes_sent(int but);

// What `work` sends, between two barriers of the team: what was sent before may still wait in a queue, and is counted
// when it leaves.
std::optional<std::int64_t> tcp_bytes_of(distributed::Team* maybe_team, const std::function<void()>& work);

}  // namespace mhla::apps
