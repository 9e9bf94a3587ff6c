# Writes build_info.h with the git revision; run at each build, rewrites only what changed.
execute_process(COMMAND git -C ${SOURCE_DIR} describe --always --dirty --abbrev=12
                OUTPUT_VARIABLE revision OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
                RESULT_VARIABLE failed)
if(failed)
  set(revision unknown)
endif()
set(text "// Made by the build.
#pragma once
#define TPJITTER_GIT_REVISION \"${revision}\"
#define TPJITTER_VERSION \"${VERSION}\"
#define TPJITTER_COMPILER \"${COMPILER}\"
#define TPJITTER_BUILD_TYPE \"${BUILD_TYPE}\"
#define TPJITTER_SANITIZE \"${SANITIZE}\"
")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT "${old}" STREQUAL "${text}")
  file(WRITE ${OUTPUT} "${text}")
endif()
