// Counts what operator new hands out in a test program that links allocation_count.cpp.
#pragma once

namespace tpjitter {
long allocation_count();
}
