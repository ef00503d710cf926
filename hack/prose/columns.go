package main

import (
	"bufio"
	"fmt"
	"os"
	"regexp"
	"strings"
	"unicode/utf8"
)

const (
	// maxColumns is the width of comments. A tab counts as tabWidth columns.
	maxColumns = 100
	tabWidth   = 4
)

// comment matches a line that is a comment and can be wrapped: no marker, directive or indented
// text.
var comment = regexp.MustCompile(`^\s*// [^\s+]\S* `)

// tooWide returns the lines of a file whose comments are wider than maxColumns, as FILE:LINE:
// COLUMNS.
func tooWide(source string) ([]string, error) {
	file, err := os.Open(source)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var found []string
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<24)
	for n := 1; lines.Scan(); n++ {
		columns := utf8.RuneCountInString(strings.ReplaceAll(lines.Text(), "\t", strings.Repeat(" ", tabWidth)))
		if columns > maxColumns && comment.MatchString(lines.Text()) {
			found = append(found, fmt.Sprintf("%s:%d: the comment has %d columns, of %d", source, n, columns, maxColumns))
		}
	}
	return found, lines.Err()
}
