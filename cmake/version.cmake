# Run at build time: writes version.cpp, touching it only when something changed.
execute_process(COMMAND git describe --always --dirty --abbrev=12 --exclude=*
                WORKING_DIRECTORY ${SOURCE_DIR} OUTPUT_VARIABLE COMMIT ERROR_QUIET
                OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT COMMIT)
  set(COMMIT unknown)
endif()
configure_file(${SOURCE_DIR}/cmake/version.cpp.in ${OUTPUT} @ONLY)
