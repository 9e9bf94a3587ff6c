# Writes OUTPUT, a C++ file that holds the page's style sheet and scripts with their SHA-256, which the
# page's content security policy names. CHART_JS may be empty: then the page has tables only.
#   cmake -DSOURCE_DIR=... -DCHART_JS=... -DOUTPUT=... -P embed.cmake
set(text "#include \"reports/html_assets.h\"\n\nnamespace tpjitter {\n")
foreach(asset "kPageCss;${SOURCE_DIR}/page.css" "kPageJs;${SOURCE_DIR}/page.js" "kChartJs;${CHART_JS}")
  list(GET asset 0 name)
  list(GET asset 1 file)
  set(content "")
  if(file)
    file(READ "${file}" content)
  endif()
  if(content MATCHES "\\)asset\"|</[sS][cCtT]")
    message(FATAL_ERROR "${file} cannot be embedded: it would end its own element")
  endif()
  string(SHA256 hash "${content}")
  string(APPEND text "const HtmlAsset ${name} = {R\"asset(${content})asset\",\n  \"${hash}\"};\n")
endforeach()
string(APPEND text "}  // namespace tpjitter\n")
file(WRITE "${OUTPUT}" "${text}")
