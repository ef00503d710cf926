package validation

import (
	"regexp"
	"strings"

	"macrack.io/macrack/pkg/apis/image"
)

var (
	date     = regexp.MustCompile(`^20[0-9]{2}(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])$`)
	revision = regexp.MustCompile(`^r[0-9]{1,3}$`)

	// wordAndNumber splits xcode26.1 into xcode and 26.1.
	wordAndNumber = regexp.MustCompile(`^([a-z]*)([0-9].*)?$`)
)

// foreignInTag returns the first part of a tag that does not come from the contents of the image,
// or "".
//
// A tag consists of parts separated by - or _. A part is a word (the name of a content), a number
// (a version, its beginning, or a build), a word with a number, a date or a revision. Words and
// numbers come from the contents alone, so no spelling gets a foreign name into a tag.
func foreignInTag(tag string, contents []image.ImageContent) string {
	if tag == "" {
		return ""
	}
	words, numbers := vocabulary(contents)
	for _, part := range strings.FieldsFunc(tag, func(r rune) bool { return r == '-' || r == '_' }) {
		lower := strings.ToLower(part)
		if numbers[lower] || date.MatchString(lower) || revision.MatchString(lower) {
			continue
		}
		match := wordAndNumber.FindStringSubmatch(lower)
		if match == nil || !words[match[1]] || match[2] != "" && !numbers[match[2]] {
			return part
		}
	}
	return ""
}

// vocabulary returns the words and the numbers of the contents in lower case: of Xcode 26.2-beta3
// (17C5038g) the word xcode and the numbers 26, 26.2, beta3 and 17c5038g.
func vocabulary(contents []image.ImageContent) (words, numbers map[string]bool) {
	words, numbers = map[string]bool{}, map[string]bool{}
	for _, content := range contents {
		for _, word := range nameWords(content.Name) {
			words[word] = true
		}
		if content.Build != "" && build.MatchString(content.Build) {
			numbers[strings.ToLower(content.Build)] = true
		}
		if !version.MatchString(content.Version) {
			continue
		}
		release, suffix, _ := strings.Cut(content.Version, "-")
		if suffix != "" {
			numbers[suffix] = true
		}
		for i, r := range release {
			if r == '.' {
				numbers[release[:i]] = true
			}
		}
		numbers[release] = true
	}
	return words, numbers
}

// nameWords returns the words that can stand for a content in a tag.
func nameWords(name string) []string {
	switch name {
	case image.ContentMacOS:
		return []string{"macos"}
	case image.ContentXcode:
		return []string{"xcode"}
	case image.ContentGuestAgent:
		return []string{"guest", "agent"}
	default:
		return nil
	}
}

// allowedInTag describes the permitted parts of a tag for an error message.
func allowedInTag(contents []image.ImageContent) []string {
	var allowed []string
	for _, content := range contents {
		if nameWords(content.Name) == nil || !version.MatchString(content.Version) {
			continue
		}
		allowed = append(allowed, strings.ToLower(content.Name), content.Version)
		if build.MatchString(content.Build) {
			allowed = append(allowed, content.Build)
		}
	}
	return allowed
}

// exampleTag returns a valid tag for the image.
func exampleTag(contents []image.ImageContent) string {
	var parts []string
	for _, name := range []string{image.ContentMacOS, image.ContentXcode} {
		for _, content := range contents {
			if content.Name == name && version.MatchString(content.Version) {
				parts = append(parts, strings.ToLower(name), content.Version)
				break
			}
		}
	}
	if len(parts) == 0 {
		return "macos-26.1"
	}
	return strings.Join(parts, "-")
}
