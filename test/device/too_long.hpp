#pragma once

#include <verbena/error.hpp>

#include <infiniband/verbs.h>

namespace support {

/// Whether a completion says that a message did not fit. Soft-RoCE calls it an operation error, on both sides.
inline bool says_too_long(std::error_code code) {
    return code == verbena::errc::message_too_long ||
           (code.category() == verbena::completion_category() &&
            (code.value() == IBV_WC_REM_OP_ERR || code.value() == IBV_WC_LOC_QP_OP_ERR));
}

} // namespace support
