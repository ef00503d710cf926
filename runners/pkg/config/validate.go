package config

import (
	"crypto/x509"
	"net/url"
	"regexp"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
)

const (
	maxPrefetchImages = 16
	maxScript         = 64 << 10
	// maxGitHubScript leaves room for the lines that wait for a job.
	maxGitHubScript = 60 << 10
	// maxName leaves room for the suffixes of leases and instances.
	maxName = 40
)

func validate(config *RunnersConfiguration) field.ErrorList {
	path := field.NewPath("sets")
	if len(config.Sets) == 0 {
		return field.ErrorList{field.Required(path, "add a set")}
	}
	var errs field.ErrorList
	names, scaleSets := map[string]bool{}, map[string]bool{}
	for i := range config.Sets {
		set, path := &config.Sets[i], path.Index(i)
		for _, message := range validation.IsDNS1123Label(set.Name) {
			errs = append(errs, field.Invalid(path.Child("name"), set.Name, message))
		}
		if len(set.Name) > maxName {
			errs = append(errs, field.TooLong(path.Child("name"), set.Name, maxName))
		}
		if names[set.Name] {
			errs = append(errs, field.Duplicate(path.Child("name"), set.Name))
		}
		names[set.Name] = true
		errs = append(errs, validateLeases(&set.Leases, path.Child("leases"))...)
		errs = append(errs, validateInstances(set, path.Child("instances"))...)
		errs = append(errs, validateSource(set, path)...)
		if github := set.GitHub; github != nil {
			// GitHub gives all jobs of a scale set to one session.
			id := strings.ToLower(strings.TrimRight(github.URL, "/") + " " + github.RunnerGroup + " " + github.ScaleSetName)
			if scaleSets[id] {
				errs = append(errs, field.Duplicate(path.Child("github", "scaleSetName"), github.ScaleSetName))
			}
			scaleSets[id] = true
		}
	}
	return errs
}

func validateLeases(leases *Leases, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if leases.ClassName != "" {
		errs = append(errs, validateName(leases.ClassName, path.Child("className"))...)
	}
	if leases.Max < 1 {
		errs = append(errs, field.Invalid(path.Child("max"), leases.Max, "must be 1 or more"))
	}
	if leases.Min < 0 || leases.Min > max(leases.Max, 0) {
		errs = append(errs, field.Invalid(path.Child("min"), leases.Min, "must be from 0 to max"))
	}
	errs = append(errs, validateNames(leases.PrefetchImages, path.Child("prefetchImages"))...)
	if n := len(leases.PrefetchImages); n > maxPrefetchImages {
		errs = append(errs, field.TooMany(path.Child("prefetchImages"), n, maxPrefetchImages))
	}
	errs = append(errs, validateDuration(leases.GrowAfter, 0, path.Child("growAfter"))...)
	errs = append(errs, validateDuration(leases.KeepIdle, 0, path.Child("keepIdle"))...)
	errs = append(errs, validateDuration(leases.DecideBefore, 0, path.Child("decideBefore"))...)
	if leases.DecideBefore.Duration >= 24*time.Hour {
		errs = append(errs, field.Invalid(path.Child("decideBefore"), leases.DecideBefore.Duration.String(), "must be less than 24h, the shortest lease"))
	}
	return append(errs, validateLeaseCaches(leases.Caches, path.Child("caches"))...)
}

func validateInstances(set *Set, path *field.Path) field.ErrorList {
	instances := &set.Instances
	errs := validateName(instances.ClassName, path.Child("className"))
	errs = append(errs, validateName(instances.ImageName, path.Child("imageName"))...)
	if instances.PerLease != 1 && instances.PerLease != 2 {
		errs = append(errs, field.Invalid(path.Child("perLease"), instances.PerLease, "must be 1 or 2"))
	} else if slots := instances.PerLease * set.Leases.Max; *instances.Warm < 0 || *instances.Warm > max(slots, 0) {
		errs = append(errs, field.Invalid(path.Child("warm"), *instances.Warm, "must be from 0 to perLease times max"))
	}
	errs = append(errs, validateDuration(instances.MaxAge, time.Minute, path.Child("maxAge"))...)
	errs = append(errs, validateDuration(instances.Timeout, time.Minute, path.Child("timeout"))...)
	return append(errs, validateInstanceCaches(instances.Caches, set.Leases.Caches, path.Child("caches"))...)
}

func validateSource(set *Set, path *field.Path) field.ErrorList {
	sources := 0
	var errs field.ErrorList
	if set.GitHub != nil {
		sources++
		errs = append(errs, validateGitHub(set.GitHub, path.Child("github"))...)
	}
	if set.GitLab != nil {
		sources++
	}
	if set.Script != nil {
		sources++
		errs = append(errs, validateScript(set.Script, path.Child("script"))...)
	}
	switch {
	case sources == 0:
		errs = append(errs, field.Required(path, "set one of github, gitlab and script"))
	case sources > 1:
		errs = append(errs, field.Forbidden(path, "set only one of github, gitlab and script"))
	}
	return errs
}

func validateGitHub(github *GitHub, path *field.Path) field.ErrorList {
	errs := validateURL(github.URL, path.Child("url"), "https")
	if u, err := url.Parse(github.URL); err == nil && strings.Trim(u.Path, "/") == "" {
		errs = append(errs, field.Invalid(path.Child("url"), github.URL, "must have the path of a repository, organization or enterprise"))
	}
	if github.ProxyURL != "" {
		errs = append(errs, validateURL(github.ProxyURL, path.Child("proxyURL"), "http", "https")...)
	}
	if github.CABundle != "" && !x509.NewCertPool().AppendCertsFromPEM([]byte(github.CABundle)) {
		errs = append(errs, field.Invalid(path.Child("caBundle"), "", "must have a certificate in PEM format"))
	}
	if len(github.StartupScript) > maxGitHubScript {
		errs = append(errs, field.TooLong(path.Child("startupScript"), "", maxGitHubScript))
	}
	if !runnerPath.MatchString(github.RunnerPath) {
		errs = append(errs, field.Invalid(path.Child("runnerPath"), github.RunnerPath, "must have letters, digits and the characters / . _ - only"))
	}
	return append(errs, validateName(github.SecretName, path.Child("secretName"))...)
}

// runnerPath is the path of the runner, which a shell reads.
var runnerPath = regexp.MustCompile(`^[A-Za-z0-9/._-]+$`)

// validateURL refuses URLs with a password, since the configuration is no place for secrets.
func validateURL(text string, path *field.Path, schemes ...string) field.ErrorList {
	if text == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "":
		return field.ErrorList{field.Invalid(path, "(not a URL)", "must be a URL such as "+schemes[0]+"://example.com")}
	case u.User != nil:
		return field.ErrorList{field.Invalid(path, u.Redacted(), "must not contain a user or a password")}
	}
	for _, scheme := range schemes {
		if u.Scheme == scheme {
			return nil
		}
	}
	return field.ErrorList{field.NotSupported(path, u.Scheme, schemes)}
}

func validateScript(script *Script, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if script.Script == "" {
		errs = append(errs, field.Required(path.Child("script"), ""))
	}
	if len(script.Script) > maxScript {
		errs = append(errs, field.TooLong(path.Child("script"), "", maxScript))
	}
	names := map[string]bool{}
	for i, env := range script.Env {
		path := path.Child("env").Index(i)
		for _, message := range validation.IsEnvVarName(env.Name) {
			errs = append(errs, field.Invalid(path.Child("name"), env.Name, message))
		}
		if names[env.Name] {
			errs = append(errs, field.Duplicate(path.Child("name"), env.Name))
		}
		names[env.Name] = true
		if env.ValueFrom != nil {
			errs = append(errs, validateEnvSource(env, path.Child("valueFrom"))...)
		}
	}
	for i, from := range script.EnvFrom {
		if (from.SecretRef == nil) == (from.ConfigMapRef == nil) {
			errs = append(errs, field.Required(path.Child("envFrom").Index(i), "set one of secretRef and configMapRef"))
		}
	}
	return errs
}

func validateEnvSource(env instancev1alpha1.EnvVar, path *field.Path) field.ErrorList {
	switch from := env.ValueFrom; {
	case env.Value != "":
		return field.ErrorList{field.Forbidden(path, "set only one of value and valueFrom")}
	case (from.SecretKeyRef == nil) == (from.ConfigMapKeyRef == nil):
		return field.ErrorList{field.Required(path, "set one of secretKeyRef and configMapKeyRef")}
	}
	return nil
}

func validateDuration(d *metav1.Duration, least time.Duration, path *field.Path) field.ErrorList {
	if d.Duration < least {
		return field.ErrorList{field.Invalid(path, d.Duration.String(), "must be "+least.String()+" or more")}
	}
	return nil
}

// validateName refuses a name that no object can have.
func validateName(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	for _, message := range validation.IsDNS1123Subdomain(name) {
		errs = append(errs, field.Invalid(path, name, message))
	}
	return errs
}

func validateNames(names []string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, name := range names {
		errs = append(errs, validateName(name, path.Index(i))...)
		if seen[name] {
			errs = append(errs, field.Duplicate(path.Index(i), name))
		}
		seen[name] = true
	}
	return errs
}
