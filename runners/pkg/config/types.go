// Package config has the configuration file of macrack-runners.
package config

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"

	"macrack.io/macrack/runners/pkg/floor"
)

const (
	// APIVersion is the apiVersion of the file.
	APIVersion = "runners.macrack.io/v1alpha1"
	// Kind is the kind of the file.
	Kind = "RunnersConfiguration"
)

// RunnersConfiguration is the configuration of macrack-runners. Durations are written as 90s, 15m
// or 24h.
type RunnersConfiguration struct {
	metav1.TypeMeta `json:",inline"`
	// Sets are the sets of runners: at least one.
	Sets []Set `json:"sets"`
}

// Set is a number of leases whose virtual machines run the jobs of one source. Exactly one of
// github, gitlab and script is set.
type Set struct {
	// Name identifies the set in its namespace. Its leases and instances begin with it.
	Name string `json:"name"`
	// Leases are the Macs.
	Leases Leases `json:"leases"`
	// Instances are the virtual machines.
	Instances Instances `json:"instances"`
	// GitHub is the source of the jobs of GitHub Actions.
	GitHub *GitHub `json:"github,omitempty"`
	// GitLab is the source of the jobs of GitLab.
	GitLab *GitLab `json:"gitlab,omitempty"`
	// Script makes each virtual machine run a script once.
	Script *Script `json:"script,omitempty"`
}

// Leases are the Macs of a set.
type Leases struct {
	// ClassName is the name of the MacNodeClass. Defaults to the default class of the fleet.
	ClassName string `json:"className,omitempty"`
	// Min is the minimum number of leases. Defaults to 0.
	Min int `json:"min,omitempty"`
	// Max is the maximum number of leases, including deleted ones until their Macs are released.
	Max int `json:"max"`
	// PrefetchImages are the MacOSImages to pull as soon as a lease is bound. Defaults to the image
	// of the instances.
	PrefetchImages []string `json:"prefetchImages,omitempty"`
	// GrowAfter is the time for which demand exceeds the capacity before another Mac is leased.
	// Defaults to 1m.
	GrowAfter *metav1.Duration `json:"growAfter,omitempty"`
	// KeepIdle is the time for which a lease is idle before it is surplus. Defaults to 30m.
	KeepIdle *metav1.Duration `json:"keepIdle,omitempty"`
	// DecideBefore is the time before the floor of a lease at which it is deleted if it is surplus.
	// Defaults to 15m.
	DecideBefore *metav1.Duration `json:"decideBefore,omitempty"`
	// Caches are the caches of new leases. Maximum: 8 caches.
	Caches []rackv1alpha1.LeaseCache `json:"caches,omitempty"`
}

// Instances are the virtual machines of a set. Each runs one job.
type Instances struct {
	// ClassName is the name of the InstanceClass.
	ClassName string `json:"className"`
	// ImageName is the name of the MacOSImage.
	ImageName string `json:"imageName"`
	// PerLease is the number of virtual machines on a Mac: 1 or 2. Defaults to 2.
	PerLease int `json:"perLease,omitempty"`
	// Warm is the number of booted virtual machines without a job to aim for while there are jobs.
	// With script, it is the number of virtual machines. Defaults to 1.
	Warm *int `json:"warm,omitempty"`
	// MaxAge is the age at which a virtual machine without a job is replaced. Defaults to 24h.
	MaxAge *metav1.Duration `json:"maxAge,omitempty"`
	// Timeout is the time after which a job is ended. Defaults to 6h.
	Timeout *metav1.Duration `json:"timeout,omitempty"`
	// Caches are the caches of the leases that the virtual machines use. Those on a lease without
	// such a cache run without it. Defaults to all caches of the leases.
	Caches []instancev1alpha1.InstanceCache `json:"caches,omitempty"`
}

// GitHub is a runner scale set of GitHub Actions.
type GitHub struct {
	// URL is the URL of the repository, organization or enterprise on github.com or on a GitHub
	// Enterprise Server.
	URL string `json:"url"`
	// ScaleSetName is the name that workflows use in runs-on. Defaults to the name of the set.
	ScaleSetName string `json:"scaleSetName,omitempty"`
	// RunnerGroup is the name of the runner group. Defaults to Default.
	RunnerGroup string `json:"runnerGroup,omitempty"`
	// SecretName is the name of the Secret with a token or the key of a GitHub App.
	SecretName string `json:"secretName"`
	// ProxyURL is the URL of the proxy for requests to GitHub. Defaults to a direct connection.
	ProxyURL string `json:"proxyURL,omitempty"`
	// CABundle are the certificates, in PEM format, of the authorities of a GitHub Enterprise
	// Server. Defaults to those of the system.
	CABundle string `json:"caBundle,omitempty"`
	// StartupScript is a shell script that each virtual machine runs before it can take a job, such
	// as the installation of the runner. Maximum: 60 KiB.
	StartupScript string `json:"startupScript,omitempty"`
	// RunnerPath is the path of the runner's run.sh in the virtual machine, from the home
	// directory. Defaults to actions-runner/run.sh.
	RunnerPath string `json:"runnerPath,omitempty"`
}

// GitLab is the custom executor of gitlab-runner, which asks for virtual machines itself. It has no
// settings.
type GitLab struct{}

// Script is a script that each virtual machine runs once, such as an agent that ends after one job.
type Script struct {
	// Script is the script. Maximum: 64 KiB.
	Script string `json:"script"`
	// Env are the variables of the script: literals, or keys of Secrets and ConfigMaps.
	Env []instancev1alpha1.EnvVar `json:"env,omitempty"`
	// EnvFrom are Secrets and ConfigMaps whose keys become variables of the script.
	EnvFrom []instancev1alpha1.EnvFromSource `json:"envFrom,omitempty"`
}

// Limits returns the settings of the floor rule, after defaulting.
func (s *Set) Limits() floor.Limits {
	return floor.Limits{
		Min: s.Leases.Min, Max: s.Leases.Max, PerLease: s.Instances.PerLease, Warm: *s.Instances.Warm, Steady: s.Script != nil,
		GrowAfter:    s.Leases.GrowAfter.Duration,
		KeepIdle:     s.Leases.KeepIdle.Duration,
		DecideBefore: s.Leases.DecideBefore.Duration,
	}
}
