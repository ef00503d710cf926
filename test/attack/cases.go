package main

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"sigs.k8s.io/yaml"
)

// testdata has the attempts that are data, one file for each family, and the objects that they
// create.
//
//go:embed testdata/*.yaml
var testdata embed.FS

// A caseFile has the attempts of a family, in the order in which they are made.
type caseFile struct {
	Family   string     `json:"family"`
	Attempts []caseSpec `json:"attempts"`
}

// A caseSpec is an attempt, or one attempt for each user and value. Strings can contain variables:
// $(acmeMac), $(acmeSerial), $(acmeUID), $(acmeRecord), and the same of globex. $(value) is the
// value, $(quoted) is the value quoted, and $(quoted:20) is the value cut to 20 characters and
// quoted. $(x*1000) is a string repeated 1000 times.
type caseSpec struct {
	// Name is the name in the report.
	Name string `json:"name"`
	// Each has the values of $(value); one attempt is made with each.
	Each []string `json:"each,omitempty"`

	// Do has the users, separated by commas, the verb, and the path. The verbs are get, post, put,
	// delete; merge, json, strategic and apply, which are kinds of patches; store, which creates an
	// object, reads and deletes it, and returns it as stored; edit, which reads an object, edits it
	// and writes it back; and run, which runs a Go function from steps instead of a request to a
	// path. A path begins with rack/, instance/, image/, config/, rbac/, core/, or a slash.
	Do string `json:"do"`
	// Given names a fixture that exists during the attempt; see givens.
	Given string `json:"given,omitempty"`
	// Args are the arguments of a function from steps.
	Args map[string]string `json:"args,omitempty"`

	// Object is an object of objects.yaml, and With a merge patch of it.
	Object string          `json:"object,omitempty"`
	With   json.RawMessage `json:"with,omitempty"`
	// Body replaces Object. A string is sent unchanged.
	Body json.RawMessage `json:"body,omitempty"`
	// Edit is a merge patch or a list of JSON patch operations. Read is the path of the object to
	// edit; the default is the path that is written.
	Edit json.RawMessage `json:"edit,omitempty"`
	Read string          `json:"read,omitempty"`

	Header      map[string]string `json:"header,omitempty"`
	Accept      string            `json:"accept,omitempty"`
	ContentType string            `json:"contentType,omitempty"`
	// Replica is the macrack-apiserver that receives the request; 0: kube-apiserver.
	Replica int `json:"replica,omitempty"`
	// Raw sends the path unchanged.
	Raw bool `json:"raw,omitempty"`

	// Want has the allowed codes, separated by |, and a string that the response must contain.
	Want string `json:"want"`
	// Lacks are strings that the response must not contain.
	Lacks []string `json:"lacks,omitempty"`
	// Fields has the values of the response's fields by path; null: absent. Not has values that the
	// fields must not have.
	Fields map[string]any `json:"fields,omitempty"`
	Not    map[string]any `json:"not,omitempty"`
	// Record is the record that the attempt must leave; see attempt.
	Record string `json:"record,omitempty"`
}

// apiPaths are the beginnings of paths.
var apiPaths = map[string]string{"rack": rackPath, "instance": instancePath, "image": imagePath, "config": configPath, "rbac": rbacPath, "core": "/api/v1"}

// patchKinds are the media types of patches by their verbs.
var patchKinds = map[string]string{"merge": mergePatch, "json": jsonPatch, "strategic": strategicPatch, "apply": applyPatch}

// decodeFile decodes a file of testdata strictly.
func decodeFile(name string, into any) error {
	data, err := testdata.ReadFile("testdata/" + name + ".yaml")
	if err == nil {
		err = yaml.UnmarshalStrict(data, into)
	}
	if err != nil {
		return fmt.Errorf("%s.yaml: %w", name, err)
	}
	return nil
}

// cases returns the attempts of the file with this name.
func (w *world) cases(name string) ([]attempt, error) {
	objects, file := map[string]json.RawMessage{}, caseFile{}
	if err := decodeFile("objects", &objects); err != nil {
		return nil, err
	}
	if err := decodeFile(name, &file); err != nil {
		return nil, err
	}
	var attempts []attempt
	for _, spec := range file.Attempts {
		values := spec.Each
		if len(values) == 0 {
			values = []string{""}
		}
		for _, value := range values {
			e := expander{world: w.variables(), objects: objects}
			e.value = e.text(value)
			some, err := e.attempts(file.Family, spec)
			if err != nil {
				return nil, fmt.Errorf("%s.yaml: %s: %w", name, spec.Name, err)
			}
			attempts = append(attempts, some...)
		}
	}
	return attempts, nil
}

// variables returns the variables of attempts and their values.
func (w *world) variables() map[string]string {
	return map[string]string{
		"acmeMac": w.acmeMac, "acmeSerial": w.acmeSerial, "acmeUID": w.acmeUID,
		"acmeRecord": strings.ToLower(w.acmeSerial) + "-000000000001",
		"globexMac":  w.globexMac, "globexSerial": w.globexSerial, "globexUID": w.globexUID,
	}
}

// An expander expands a caseSpec for one value.
type expander struct {
	world   map[string]string
	value   string
	objects map[string]json.RawMessage
	err     error // the first error
}

func (e *expander) fail(err error) {
	if e.err == nil {
		e.err = err
	}
}

// attempts returns an attempt for each user.
func (e *expander) attempts(family string, spec caseSpec) ([]attempt, error) {
	users, verb, path := split(spec.Do)
	do := e.step(spec, verb, e.text(path))
	if spec.Given != "" {
		given, ok := givens[spec.Given]
		if !ok {
			e.fail(fmt.Errorf("unknown object %q in given", spec.Given))
			return nil, e.err
		}
		do = given(do)
	}
	base := attempt{family: family, name: e.text(spec.Name), do: do, want: e.want(spec), record: spec.Record}
	var all []attempt
	for who := range strings.SplitSeq(users, ",") {
		base.who = who
		all = append(all, base)
	}
	return all, e.err
}

func split(do string) (users, verb, path string) {
	users, rest, _ := strings.Cut(do, " ")
	verb, path, _ = strings.Cut(rest, " ")
	return users, verb, path
}

func (e *expander) step(spec caseSpec, verb, path string) step {
	if verb == "run" {
		make, ok := steps[path]
		if !ok {
			e.fail(fmt.Errorf("unknown step %q", path))
			return nil
		}
		args := map[string]string{}
		for name, value := range spec.Args {
			args[name] = e.text(value)
		}
		return make(args)
	}
	c := call{
		path: e.path(path), body: e.body(spec), accept: spec.Accept, contentType: spec.ContentType, replica: spec.Replica, raw: spec.Raw,
	}
	for name, value := range spec.Header {
		if c.header == nil {
			c.header = map[string]string{}
		}
		c.header[name] = e.text(value)
	}
	switch verb {
	case "get", "post", "put", "delete":
		c.method = strings.ToUpper(verb)
	case "merge", "json", "strategic", "apply":
		c.method, c.contentType = http.MethodPatch, patchKinds[verb]
		if verb == "apply" && !strings.Contains(c.path, "?") {
			c.path += "?fieldManager=attack&force=true"
		}
	case "store":
		return stored(c.path, c.body)
	case "edit":
		return e.edit(spec, c.path)
	default:
		e.fail(fmt.Errorf("unknown verb %q", verb))
	}
	return c.do
}

func (e *expander) edit(spec caseSpec, write string) step {
	read := write
	if spec.Read != "" {
		read = e.path(e.text(spec.Read))
	}
	patch := e.json(spec.Edit)
	return rewrite(read, write, func(obj []byte) ([]byte, error) {
		if !bytes.HasPrefix(patch, []byte("[")) {
			return jsonpatch.MergePatch(obj, patch)
		}
		operations, err := jsonpatch.DecodePatch(patch)
		if err != nil {
			return nil, err
		}
		return operations.Apply(obj)
	})
}

func (e *expander) path(path string) string {
	group, rest, _ := strings.Cut(path, "/")
	if group == "" {
		return path
	}
	api, ok := apiPaths[group]
	if !ok {
		e.fail(fmt.Errorf("unknown path %q", path))
	}
	return api + "/" + rest
}

// body returns the body of a request.
func (e *expander) body(spec caseSpec) string {
	if spec.Object == "" {
		text := ""
		if json.Unmarshal(spec.Body, &text) == nil {
			return e.text(text)
		}
		return string(e.json(spec.Body))
	}
	object, ok := e.objects[spec.Object]
	if !ok || spec.Body != nil {
		e.fail(fmt.Errorf("unknown object %q, or a body besides", spec.Object))
		return ""
	}
	object = e.json(object)
	if spec.With != nil {
		var err error
		if object, err = jsonpatch.MergePatch(object, e.json(spec.With)); err != nil {
			e.fail(err)
		}
	}
	return string(object)
}

// json expands the texts in a JSON value.
func (e *expander) json(data json.RawMessage) []byte {
	if len(data) == 0 {
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		e.fail(err)
		return nil
	}
	data, err := json.Marshal(e.texts(value))
	if err != nil {
		e.fail(err)
	}
	return data
}

func (e *expander) texts(value any) any {
	switch value := value.(type) {
	case string:
		return e.text(value)
	case []any:
		for i := range value {
			value[i] = e.texts(value[i])
		}
	case map[string]any:
		for name := range value {
			value[name] = e.texts(value[name])
		}
	}
	return value
}

var variable = regexp.MustCompile(`\$\(([^()]*)\)`)

// text expands the variables in a text.
func (e *expander) text(text string) string {
	return variable.ReplaceAllStringFunc(text, func(match string) string {
		name := match[2 : len(match)-1]
		if value, ok := e.world[name]; ok {
			return value
		}
		name, argument, _ := strings.Cut(name, ":")
		switch repeated, times, ok := strings.Cut(name, "*"); {
		case ok:
			n, err := strconv.Atoi(times)
			if err != nil {
				e.fail(err)
			}
			return strings.Repeat(repeated, n)
		case name == "value":
			return e.value
		case name == "quoted" && argument == "":
			return fmt.Sprintf("%+q", e.value)
		case name == "quoted":
			n, err := strconv.Atoi(argument)
			if err != nil {
				e.fail(err)
			}
			return fmt.Sprintf("%+.*q", n, e.value)
		}
		e.fail(fmt.Errorf("unknown variable %s", match))
		return match
	})
}

func (e *expander) want(spec caseSpec) want {
	codes, says, _ := strings.Cut(spec.Want, " ")
	x := want{says: e.text(says)}
	for code := range strings.SplitSeq(codes, "|") {
		n, err := strconv.Atoi(code)
		if err != nil {
			e.fail(err)
		}
		x.codes = append(x.codes, n)
	}
	for _, text := range spec.Lacks {
		x.lacks = append(x.lacks, e.text(text))
	}
	if len(spec.Fields)+len(spec.Not) > 0 {
		x.holds = checkFields(e.texts(spec.Fields).(map[string]any), e.texts(spec.Not).(map[string]any))
	}
	return x
}

// checkFields returns a check of the fields of an object by their paths.
func checkFields(fields, not map[string]any) func(body string) error {
	return func(body string) error {
		obj := map[string]any{}
		if err := json.Unmarshal([]byte(body), &obj); err != nil {
			return err
		}
		for path, value := range fields {
			if got := dig(obj, strings.Split(path, ".")...); got != value {
				return fmt.Errorf("%s is %v, wanted %v", path, got, value)
			}
		}
		for path, value := range not {
			if got := dig(obj, strings.Split(path, ".")...); got == value {
				return fmt.Errorf("%s is %v", path, got)
			}
		}
		return nil
	}
}

// caseFiles returns the names of the files with attempts.
func caseFiles() ([]string, error) {
	entries, err := testdata.ReadDir("testdata")
	var names []string
	for _, entry := range entries {
		names = append(names, strings.TrimSuffix(entry.Name(), ".yaml"))
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == "objects" }), err
}
