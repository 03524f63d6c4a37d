#pragma once

// The functions of libibverbs that this library defines, declared with default visibility and without the macros that
// the header puts in front of some of them.

#pragma GCC visibility push(default)
#include <infiniband/verbs.h>
#pragma GCC visibility pop

#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_get_device_list
