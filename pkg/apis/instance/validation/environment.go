package validation

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/internal/check"
)

const (
	maxEnv     = 256
	maxEnvFrom = 32
	// maxEnvName bounds the name of a variable, and the prefix of names.
	maxEnvName = 1 << 10
	// maxEnvLiterals bounds the names and values in the object. ConfigMaps and Secrets can have
	// more.
	maxEnvLiterals = 64 << 10
)

// validateEnvironment checks the environment of the startup script. Errors do not repeat values,
// because one may be a secret by mistake.
func validateEnvironment(spec *instance.MacOSInstanceSpec, path *field.Path) field.ErrorList {
	env, envFrom := path.Child("env"), path.Child("envFrom")
	var errs field.ErrorList
	if n := len(spec.Env); n > maxEnv {
		errs = append(errs, field.TooMany(env, n, maxEnv))
	}
	if n := len(spec.EnvFrom); n > maxEnvFrom {
		errs = append(errs, field.TooMany(envFrom, n, maxEnvFrom))
	}
	if len(errs) > 0 {
		return errs
	}
	if spec.StartupScript == "" {
		const script = "only the startup script gets the environment, and startupScript is empty; set it, or leave this field out"
		if len(spec.Env) > 0 {
			errs = append(errs, field.Forbidden(env, script))
		}
		if len(spec.EnvFrom) > 0 {
			errs = append(errs, field.Forbidden(envFrom, script))
		}
	}
	size, names := 0, sets.New[string]()
	for i, v := range spec.Env {
		if size += len(v.Name) + len(v.Value); size > maxEnvLiterals {
			return append(errs, field.Invalid(env, "(not shown)", fmt.Sprintf("must have at most %d bytes of names and values; use envFrom with a ConfigMap for more", maxEnvLiterals)))
		}
		errs = append(errs, validateEnvVar(v, env.Index(i))...)
		if names.Has(v.Name) {
			errs = append(errs, field.Duplicate(env.Index(i).Child("name"), v.Name))
		}
		names.Insert(v.Name)
	}
	for i, source := range spec.EnvFrom {
		errs = append(errs, validateEnvFrom(source, envFrom.Index(i))...)
	}
	return errs
}

func validateEnvVar(v instance.EnvVar, path *field.Path) field.ErrorList {
	errs := validateEnvName(v.Name, path.Child("name"))
	errs = append(errs, check.Lines(v.Value, maxEnvLiterals, path.Child("value"))...)
	if strings.Contains(v.Value, "\x00") {
		errs = append(errs, field.Invalid(path.Child("value"), "(not shown)", "must not contain a zero byte"))
	}
	from := v.ValueFrom
	if from == nil {
		return errs
	}
	at := path.Child("valueFrom")
	if v.Value != "" {
		errs = append(errs, field.Invalid(at, "", "cannot be used together with value; leave one of them out"))
	}
	if (from.ConfigMapKeyRef == nil) == (from.SecretKeyRef == nil) {
		errs = append(errs, field.Invalid(at, "", "must have exactly one of configMapKeyRef and secretKeyRef"))
	}
	errs = append(errs, validateKey(from.ConfigMapKeyRef, at.Child("configMapKeyRef"))...)
	return append(errs, validateKey(from.SecretKeyRef, at.Child("secretKeyRef"))...)
}

func validateEnvFrom(source instance.EnvFromSource, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if source.Prefix != "" {
		errs = append(errs, validateEnvName(source.Prefix, path.Child("prefix"))...)
	}
	if (source.ConfigMapRef == nil) == (source.SecretRef == nil) {
		errs = append(errs, field.Invalid(path, "", "must have exactly one of configMapRef and secretRef"))
	}
	if ref := source.ConfigMapRef; ref != nil {
		errs = append(errs, check.Name(ref.Name, path.Child("configMapRef", "name"))...)
	}
	if ref := source.SecretRef; ref != nil {
		errs = append(errs, check.Name(ref.Name, path.Child("secretRef", "name"))...)
	}
	return errs
}

func validateKey(ref *instance.KeySelector, path *field.Path) field.ErrorList {
	if ref == nil {
		return nil
	}
	errs := check.Name(ref.Name, path.Child("name"))
	key := path.Child("key")
	if ref.Key == "" {
		return append(errs, field.Required(key, ""))
	}
	if len(ref.Key) > utilvalidation.DNS1123SubdomainMaxLength {
		return append(errs, field.TooLong(key, "", utilvalidation.DNS1123SubdomainMaxLength))
	}
	for _, message := range utilvalidation.IsConfigMapKey(ref.Key) {
		errs = append(errs, field.Invalid(key, ref.Key, message))
	}
	return errs
}

// validateEnvName checks the name of a variable, as Pods do.
func validateEnvName(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	if len(name) > maxEnvName {
		return field.ErrorList{field.TooLong(path, "", maxEnvName)}
	}
	var errs field.ErrorList
	for _, message := range utilvalidation.IsRelaxedEnvVarName(name) {
		errs = append(errs, field.Invalid(path, name, message))
	}
	return errs
}
