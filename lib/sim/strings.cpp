#include "abi.hpp"

#include <array>
#include <cstddef>

namespace {

template <std::size_t N>
const char* text(const std::array<const char*, N>& texts, int value, const char* otherwise) {
    return value >= 0 && static_cast<std::size_t>(value) < N ? texts[static_cast<std::size_t>(value)] : otherwise;
}

} // namespace

extern "C" {

const char* ibv_wc_status_str(ibv_wc_status status) {
    static constexpr std::array texts{"success",
                                      "local length error",
                                      "local QP operation error",
                                      "local EE context error",
                                      "local protection error",
                                      "work request flushed",
                                      "memory window bind error",
                                      "bad response error",
                                      "local access error",
                                      "remote invalid request error",
                                      "remote access error",
                                      "remote operation error",
                                      "transport retry counter exceeded",
                                      "RNR retry counter exceeded",
                                      "local RDD violation error",
                                      "remote invalid RD request",
                                      "aborted error",
                                      "invalid EE context number",
                                      "invalid EE context state",
                                      "fatal error",
                                      "response timeout error",
                                      "general error",
                                      "tag matching error",
                                      "tag matching rendezvous incomplete"};
    return text(texts, status, "unknown");
}

const char* ibv_node_type_str(ibv_node_type type) {
    static constexpr std::array texts{"unknown",           "InfiniBand channel adapter",
                                      "InfiniBand switch", "InfiniBand router",
                                      "iWARP NIC",         "usNIC",
                                      "usNIC UDP",         "unspecified"};
    return text(texts, type, "unknown");
}

const char* ibv_port_state_str(ibv_port_state state) {
    static constexpr std::array texts{"no change", "down", "init", "armed", "active", "active defer"};
    return text(texts, state, "unknown");
}

const char* ibv_event_type_str(ibv_event_type event) {
    static constexpr std::array texts{"CQ error",
                                      "work queue fatal error",
                                      "work queue got an invalid request",
                                      "work queue access violation",
                                      "communication established",
                                      "send queue drained",
                                      "path migrated",
                                      "path migration error",
                                      "device fatal error",
                                      "port active",
                                      "port error",
                                      "LID change",
                                      "P_Key change",
                                      "SM change",
                                      "SRQ error",
                                      "SRQ limit reached",
                                      "last WQE reached",
                                      "client reregistration",
                                      "GID table change",
                                      "WQ fatal"};
    return text(texts, event, "unknown");
}

} // extern "C"
